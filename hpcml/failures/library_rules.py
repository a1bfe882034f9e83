"""Rules for messages of libraries: PyTorch, JAX, MPI, NumPy, HDF5, conda and others, and of the shell around them.

rules.py joins them with the other rows.
"""

from __future__ import annotations

from hpcml.failures.rule import Retry, Role, Rule

ROOT, CASCADE = Role.ROOT, Role.CASCADE
_LOCKS = "If no other process writes the file, add --env HDF5_USE_FILE_LOCKING=FALSE."
_CUDA_NAME = r"(?:_*nvJitLink|nccl|nvshmem|cu(?:da|blas|dnn|sparse|solver|fft|rand|file)|nvrtc|nvml)\w*"

_NETWORK = (
    Rule("hub-missing", ROOT,
         r"LocalEntryNotFoundError: |couldn't find (?:it|them) in the cached files|OfflineModeIsEnabled: ",
         "a model or data set is not in the node's Hugging Face cache, and the node cannot download it",
         "Download it on the login node before you submit, into a folder that all nodes share (HF_HOME). "
         "Then add --env HF_HUB_OFFLINE=1.", "not in Hugging Face cache"),
    Rule("no-internet", ROOT,
         r"(?:URLError: <urlopen error |ConnectError: |OSError: )\[Errno (?:101|113|-3)\]|gaierror: \[Errno -3\]|"
         r"Error: \(?.{0,60}HTTPSConnectionPool\(host='(?!localhost|127\.)|Could not resolve host: \S+\.\w",
         "a node could not reach an address outside the cluster: compute nodes usually have no internet access",
         "Download data, models and packages on the login node before you submit. "
         "If the site has a proxy, add --env https_proxy=ADDRESS.", "no internet access"),
    Rule("name-unresolved", ROOT,
         r"gaierror: \[Errno -[25]\]|network addresses of \(\S+ \d+\) cannot be retrieved \(gai error",
         "a host name could not be resolved on a node",
         "Correct the name. In ranks, do not set MASTER_ADDR: hpcml sets it. "
         "If the host is on the internet, download before you submit.", "host name not resolved"),
    Rule("address-in-use", ROOT,
         r"name: EADDRINUSE|\(errno: 98 - Address already in use\)|\[Errno 98\] Address already in use",
         "another process on the node already listens on the port",
         "In ranks, do not set MASTER_PORT: hpcml sets a free port. Otherwise choose another port.", "port in use"),
    Rule("store-clients", ROOT, r"waiting for clients\. (\d+)/(\d+) clients joined",
         "only {0} of {1} ranks connected to rank 0 in time",
         "The log of the missing rank shows why it did not start, or what it waited for: hpcml logs RUN.",
         "{0} of {1} ranks connected"),
    Rule("store-closed", CASCADE,
         r"(?i:failed to recv, got 0 bytes)|Connection was likely closed\. Did the remote server",
         "rank 0 or torchrun ended, and the other ranks lost their connection to it"),
    Rule("gloo-closed", CASCADE,
         r"gloo/transport/tcp/\S{1,200} (?:Connection closed by peer|.{0,20}: Connection reset by peer)",
         "another rank exited"),
    Rule("rendezvous", ROOT, r"Rendezvous(?:Connection|Timeout)Error: ",
         "torchrun's processes did not find each other in time",
         "Let hpcml set torchrun's rendezvous, without --rdzv-endpoint: hpcml help ranks.", "rendezvous failed"),
)  # fmt: skip

_FILES = (
    Rule("permission", ROOT, r"PermissionError: \[Errno 13\] Permission denied: '([^']+)'",
         "you have no permission for {0}",
         "namei -l PATH shows the permissions of the file and of each folder above it.", "permission denied"),
    Rule("hdf5-lock", ROOT, r"unable to lock file, errno = \d+",
         "an HDF5 file could not be locked: another process has it open, or the file system has no file locks",
         _LOCKS, "HDF5 file not locked"),
    Rule("netcdf", ROOT, r"NetCDF: HDF error",
         "NetCDF could not open an HDF5 file: the file is damaged, or its file system has no file locks",
         f"h5dump -H FILE shows whether the file is whole. {_LOCKS}", "NetCDF file not opened"),
    Rule("no-locks", ROOT, r"\(os error (?:524|37)\)|\[Errno 524\]|\[Errno 37\] No locks",
         "the file system does not support file locks",
         "Put the locked file on another file system. For uv, add --env UV_CACHE_DIR=FOLDER.", "no file locks"),
    Rule("lfs-pointer", ROOT, r"UnpicklingError: invalid load key, 'v'",
         "the file is a pointer of Git LFS, and not the data", "Fetch the data with git lfs pull, then submit again.",
         "Git LFS pointer, no data"),
    Rule("unbound-variable", ROOT, r": line \d+: (\w+): unbound variable",
         "a shell script uses the variable {0}, which is not set",
         "Set the variable with --env, or remove set -u from the script.", "variable {0} not set"),
    Rule("windows-lines", ROOT, r": line \d+: .{0,200}\$'[^'\n]{0,200}\\r'",
         "a shell script, or a file that the script reads, has the line ends of Windows",
         "Convert the file with dos2unix, or with sed -i 's/\\r$//' FILE.",
         "line ends of Windows"),
    Rule("unknown-module", ROOT,
         r"""(?:The following module\(s\) are unknown:\s*"|cannot be loaded as requested:\s*"|"""
         r"""Unable to locate a modulefile for ')([^"'\n]+)["']""",
         "the environment module {0} cannot be loaded on the node",
         "Search with module spider or module avail, then correct runtime.modules.", "module {0} not loaded"),
    Rule("no-module-command", ROOT, r"(?:^|: )module: command not found",
         "the shell on the node has no command module",
         "Remove runtime.modules, or add the line that defines the command to runtime.setup: "
         "source /etc/profile.d/modules.sh.", "no command module"),
    Rule("conda-init", ROOT,
         r"CondaError: Run 'conda init' before|shell has not been properly configured to use 'conda activate'|"
         r"(?:^|: )conda: command not found",
         "conda is not set up in the job's shell",
         "Set runtime.python to the Python of the environment: then no activation is needed.", "conda not set up"),
    Rule("conda-environment", ROOT,
         r"EnvironmentNameNotFound: Could not find conda environment: (\S+)|"
         r"EnvironmentLocationNotFound: Not a conda environment: (\S+)",
         "the conda environment {0}{1} does not exist on the node",
         "List the environments with conda env list. Put the environment on a file system that all nodes share.",
         "no such conda environment"),
    Rule("display", ROOT,
         r"no display name and no \$DISPLAY|[Cc]ould not connect to display|[Cc]annot connect to X server",
         "the script needs a display, but a batch job has none",
         "Save figures to files. For Matplotlib, add --env MPLBACKEND=Agg.", "no display"),
    Rule("licence", ROOT, r"GurobiError: .{0,400}?[Ll]icense",
         "the node has no licence for Gurobi",
         "Check the licence file (GRB_LICENSE_FILE), and whether compute nodes reach the licence server.",
         "no licence"),
)  # fmt: skip

_PYTHON = (
    Rule("numpy-version", ROOT,
         r"ValueError: numpy\.\w+ size changed, may indicate binary|ImportError: numpy\.core\.multiarray failed to "
         r"import|AttributeError: _ARRAY_API not found",
         "a compiled package was built for another version of NumPy",
         "Update that package, or install an older NumPy (numpy<2).", "built for another NumPy"),
    Rule("protobuf", ROOT, r"TypeError: Descriptors cannot (?:not )?be created directly",
         "a package's code for protobuf is older than the installed protobuf",
         "Update that package, or install an older protobuf (protobuf<3.21).", "protobuf too new"),
    Rule("undefined-symbol", ROOT, rf"(?:ImportError|OSError): \S+: undefined symbol: (?!{_CUDA_NAME})(\w+)",
         "a compiled module was built for another version of a library (missing: {0})",
         "Install the package again, for the versions in the run's environment.", "built for another version"),
    Rule("pickle-main", ROOT, r"Can't get attribute '(\w+)' on <module '__main__'",
         "a saved object needs {0}, which the script that saved it defined itself",
         "Define it in a module that both scripts import, then save the object again.", "{0} is not in __main__"),
    Rule("pickle", ROOT, r"TypeError: (?:cannot|can't) pickle '?([\w.]+)'? objects?",
         "a task, or its data, contains a {0} object, which cannot be sent to another process",
         "Create locks, open files and connections inside the task.", "{0} cannot be pickled"),
    Rule("dask-meta", ROOT, r"Metadata mismatch found in",
         "a function returned other columns or types than its meta= says",
         "Correct meta= of the call that the error names.", "Dask meta differs"),
    Rule("pool-broken", ROOT,
         r"BrokenProcessPool: |A worker process managed by the executor was unexpectedly terminated",
         "a process of the script's own process pool ended abruptly: out of memory, or a crash in compiled code",
         "Use fewer processes, or request more memory (--memory-per-node).", "process pool broken"),
    Rule("threads", ROOT,
         r"RuntimeError: can't start new thread|pthread_create failed|BlockingIOError: \[Errno 11\] Resource temp|"
         r"fork: (?:retry: )?Resource temporarily unavailable",
         "the process could not start another thread or process: a limit on the node is reached",
         "Use fewer processes, or fewer threads in each: --env OMP_NUM_THREADS=1. ulimit -u shows the limit.",
         "too many threads"),
    Rule("arguments", ROOT, r"error: the following arguments are required: (.+)",
         "the script was started without required arguments: {0}",
         "Write the arguments after the script: hpcml rerun RUN -- ARGUMENTS.", "arguments missing"),
)  # fmt: skip

_TORCH = (
    Rule("loader-bus", ROOT,
         r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Bus error|insufficient shared memory \(shm"
         r"\)|unable to allocate shared memory\(shm\)",
         "a DataLoader worker could not use shared memory: /dev/shm is full",
         "Use smaller batches or fewer workers (num_workers). df -h /dev/shm shows the size.", "/dev/shm full"),
    Rule("loader-killed", ROOT, r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
         "a DataLoader worker was killed: usually the memory of the job or the node was full, or /dev/shm",
         "Use fewer workers (num_workers) or smaller batches, or request more memory.", "DataLoader worker killed",
         Retry.MEMORY),
    Rule("loader-crashed", ROOT,
         r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (Seg\w+ \w+|Abort\w*|[FI]\w+ \w+)|"
         r"exited unexpectedly)",
         "a DataLoader worker ended ({0})",
         "With num_workers=0 the script itself loads the data, and the error appears in its traceback.",
         "DataLoader worker ended"),
    Rule("ancdata", ROOT, r"received \d+ items of ancdata",
         "the DataLoader's workers have too many files open",
         "Add ulimit -n $(ulimit -Hn) to runtime.setup, or call PyTorch's "
         'set_sharing_strategy("file_system").', "too many open files"),
    Rule("ddp-unused", ROOT, r"Expected to have finished reduction in the prior iteration",
         "DistributedDataParallel found parameters that took no part in the loss",
         "Pass find_unused_parameters=True, or use all outputs in the loss.", "parameters without gradient"),
    Rule("devices-mixed", ROOT, r"Expected all tensors to be on the same device",
         "tensors of one operation are on different devices",
         "Move the model and its data to the same device with .to(device).", "tensors on different devices"),
    Rule("torch-cpu", ROOT, r"AssertionError: Torch not compiled with CUDA enabled",
         "PyTorch is installed without CUDA", "Install a build of PyTorch with CUDA in the run's environment.",
         "PyTorch without CUDA"),
    Rule("no-compiler", ROOT, r"Failed to find C compiler\. Please specify via CC",
         "Triton found no C compiler on the node",
         "Load a compiler (runtime.modules), or add --env CC=PATH.", "no C compiler"),
    Rule("cuda-home", ROOT, r"CUDA_HOME environment variable is not set",
         "a package compiles CUDA code, but CUDA's compiler was not found on the node",
         "Load CUDA (runtime.modules), or add --env CUDA_HOME=FOLDER.", "CUDA_HOME not set"),
    Rule("nccl-heartbeat", ROOT, r"watchdog got stuck for (\d+) seconds without making progress",
         "NCCL's watchdog made no progress for {0} s: a CUDA call hangs, or a thread holds the GIL",
         "While a run hangs, hpcml stacks shows where its ranks wait. "
         "To wait longer, add --env TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=SECONDS.", "NCCL watchdog stuck"),
)  # fmt: skip

_JAX_AND_MPI = (
    Rule("xla-memory", ROOT, r"RESOURCE_EXHAUSTED: Out of memory|RESOURCE_EXHAUSTED: .{0,60}OOM when allocating",
         "XLA (JAX or TensorFlow) found no memory for an array",
         "Use smaller batches, or more GPUs. If several processes share a GPU, "
         "add --env XLA_PYTHON_CLIENT_PREALLOCATE=false.", "XLA out of memory"),
    Rule("jax-backend", ROOT, r"RuntimeError: Unable to initialize backend '(\w+)'",
         "JAX could not start its backend {0}",
         "Request GPUs (--gpus-per-node 1). Install JAX for the node's GPUs, as jax[cuda12].", "no JAX backend {0}"),
    Rule("jax-barrier", ROOT,
         r"Barrier timed out\.[\s\S]{0,400}?reached the barrier: (\d+)/(\d+)"
         r"(?:[\s\S]{0,300}?timed out task names:\s*\S*?/(task:\d+))?",
         "only {0} of {1} JAX processes reached a barrier in time (missing: {2})",
         "The log of the missing process shows why it did not start, or what it waited for: hpcml logs RUN.",
         "{0} of {1} JAX processes"),
    Rule("jax-unhealthy", CASCADE,
         r"tasks are unhealthy \(stopped sending heartbeats\)|heartbeat timeout\. This indicates that the remote task",
         "a JAX process stopped responding to the others"),
    Rule("mpi-init", ROOT,
         r"It looks like (?:MPI_INIT|MPI runtime init|orte_init|opal_init) failed for some reason"
         r"(?:[\s\S]{0,600}?developer\):\s*\n\s*(\S.*))?",
         "Open MPI could not start ({0})",
         "Use --mpi pmix, with an Open MPI that was built with PMIx: hpcml help ranks.", "MPI_Init failed"),
    Rule("pmix", ROOT,
         r"OPAL ERROR: \w{1,60}(?: \w{1,60})? in file \S{0,200}?pmix|"
         r"PMIX ERROR: .{0,200}? in file \S{0,200}?client",
         "Open MPI could not connect to Slurm's PMIx",
         "Use --mpi pmix, with an Open MPI that was built with PMIx: hpcml help ranks.", "Open MPI without PMIx"),
    Rule("mpich-pmix", ROOT, r"(?i)unsupported PMI version PMIx",
         "this build of MPICH does not support PMIx", "Use --mpi pmi2: hpcml help ranks.", "MPICH without PMIx"),
    Rule("mpi-type", ROOT,
         r"Invalid MPI type '(\S+)', --mpi=list|Couldn't (?:find|load) (?:the )?specified plugin name for mpi/(\w+)",
         "this cluster's srun has no MPI interface {0}{1}",
         "List the interfaces with srun --mpi=list, and choose one with --mpi.", "MPI interface missing"),
    Rule("mpi-slots", ROOT, r"There are not enough slots available in the system",
         "mpirun was asked for more processes than it has slots",
         "Let hpcml start the processes, without mpirun: --ranks N (hpcml help ranks).", "too few slots for mpirun"),
    Rule("mpi-root", ROOT, r"has detected an attempt to run as root",
         "Open MPI's mpirun refuses to run as root",
         "Submit as another user, or add --env OMPI_ALLOW_RUN_AS_ROOT=1 --env OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.",
         "mpirun as root"),
    Rule("mpi-start", ROOT, r"mpirun was unable to (?:launch|find) the specified (?:application|executable)",
         "no process started: mpirun could not execute the program",
         "Check the program's path. Each node must have the program.",
         "mpirun could not start the program"),
    Rule("mpi-abort", ROOT,
         r"MPI_ABORT was invoked on rank (\d+)|application called MPI_Abort\(.{0,60}\) - process (\d+)",
         "rank {0}{1} called MPI_Abort", "The rank's output before the call shows why: hpcml logs RUN.",
         "MPI_Abort in rank {0}{1}"),
    Rule("step-cpus-differ", ROOT, r"srun: fatal: \S+ set by two different environment variables",
         "a job step got two different numbers of CPUs per task from Slurm's variables",
         "Set --cpus-per-task for each srun inside the script.", "CPUs per task differ"),
    Rule("ucx-signal", ROOT, r"Caught signal \d+ \(([^:)]+)",
         "compiled code crashed ({0})", "The backtrace below this line names the library.", "crashed ({0})"),
)  # fmt: skip

_GPU = (
    Rule("device-assert", ROOT,
         r"\.cuh?:\d+: .{0,400}?block: \[.{0,60}?\] Assertion (`.{1,400}?[`']) failed|"
         r"device-side assert triggered|cudaErrorAssert\b(?!')",
         "GPU code stopped at an assertion ({0}): usually an index or a label is out of range",
         "Run again with --env CUDA_LAUNCH_BLOCKING=1: the traceback then shows the line.", "device-side assert"),
    Rule("device-ordinal", ROOT,
         r"invalid device ordinal|cudaErrorInvalidDevice\b|CUDA_ERROR_INVALID_DEVICE\b",
         "the script asked for a GPU that this process does not have",
         "Use device 0 where each process has one GPU, or the rank's LOCAL_RANK. "
         "Or request more GPUs (--gpus-per-node).", "no GPU with that number"),
    Rule("stub-library", ROOT, r"cudaErrorStubLibrary|CUDA driver is a stub library|CUDA_ERROR_STUB_LIBRARY",
         "LD_LIBRARY_PATH finds CUDA's stub library before the driver's libcuda.so.1",
         "Remove the folder stubs from LD_LIBRARY_PATH, or load fewer modules. hpcml doctor --node checks the nodes.",
         "CUDA stub library"),
    Rule("cuda-symbol", ROOT, rf"undefined symbol: ({_CUDA_NAME})",
         "a CUDA library is older than the program needs (missing: {0})",
         "An older library is found first: remove its folder from LD_LIBRARY_PATH, or load fewer modules.",
         "CUDA library too old"),
    Rule("cublas-memory", ROOT, r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
         "a CUDA library could not start on the GPU: usually the GPU's memory is full",
         "Use smaller batches. nvidia-smi shows whether another process uses the GPU.", "GPU memory full"),
)  # fmt: skip

RULES = (*_NETWORK, *_FILES, *_PYTHON, *_TORCH, *_JAX_AND_MPI, *_GPU)
