"""Pure decisions: a site and a request become a plan, and the plan a batch script."""
