"""``hpcml completion``: the lines by which a shell completes hpcml's commands, options, values and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.terminal import say_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

# Each hands the words up to the cursor to `hpcml --complete`, which answers with a line for each candidate: the word, a
# tab, what it is. `:files` and `:folders` leave the names to the shell.
# bash divides words at = and : too, so they are put together again, and what stood before is taken off the candidates.
_BASH = r"""_hpcml() {
    local word glue="" words=() last=-1 own=""
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $last -ge 0 && ( $glue || $word == [=:]* ) && $COMP_LINE == *"${words[last]}$word"* ]]; then
            words[last]+=$word
        else
            words+=("$word") last=$((last + 1))
        fi
        glue=""
        [[ $word == *[=:] && ${#word} -le 2 && $last -ge 0 ]] && glue=yes
    done
    [[ $glue ]] || own=$word
    local head=${words[last]%"$own"} kind="" text
    COMPREPLY=()
    while IFS=$'\t' read -r word text; do
        case $word in
            :files | :folders) kind=${word#:} ;;
            "$head"*) COMPREPLY+=("${word#"$head"}") ;;
        esac
    done < <("${COMP_WORDS[0]/#\~/$HOME}" --complete "${words[@]}" 2>/dev/null)
    case $kind in
        files)
            if [[ ${#COMPREPLY[@]} -gt 0 ]]; then
                compopt -o filenames
                while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$own")
            fi ;;
        folders) compopt -o dirnames +o default +o bashdefault ;;
        *) compopt +o default +o bashdefault ;;
    esac
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace
    return 0
} 2>/dev/null
complete -o bashdefault -o default -F _hpcml hpcml hpcml.pyz
"""
_ZSH = r"""#compdef hpcml hpcml.pyz
_hpcml() {
    local line word kind
    local -a closed open typed
    typed=("${(@Q)words[2,CURRENT]}")
    for line in "${(@f)$(${words[1]/#\~/$HOME} --complete "${typed[@]}" 2>/dev/null)}"; do
        word=${line%%$'\t'*}
        case $word in
            '') ;;
            :files|:folders) kind=${word#:} ;;
            *[=:]) open+=("${word//:/\\:}:${line#*$'\t'}") ;;
            *) closed+=("${word//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( ${#closed} )) && _describe -V hpcml closed
    (( ${#open} )) && _describe -V hpcml open -S ''
    [[ ${typed[-1]} == --*=* ]] && compset -P '*='
    [[ $kind == files ]] && _files
    [[ $kind == folders ]] && _files -/
    return 0
}
if [[ ${funcstack[1]} == _hpcml ]]; then
    _hpcml "$@"
else
    compdef _hpcml hpcml hpcml.pyz
fi
"""
_FISH = r"""function __hpcml_complete
    set -l words (commandline -opc) (commandline -ct)
    set words[1] (string replace -r '^~' $HOME $words[1])
    set -l typed (commandline -ct)
    set -l head (string replace -r '^(--[a-z-]+=)?.*' '$1' -- "$typed")
    set -l value (string replace -r '^--[a-z-]+=' '' -- "$typed")
    for line in (command $words[1] --complete $words[2..-1] 2>/dev/null)
        switch $line
            case ':files*'
                string replace -r '^' -- "$head" (__fish_complete_path "$value")
            case ':folders*'
                string replace -r '^' -- "$head" (__fish_complete_directories "$value" '')
            case '*'
                echo $line
        end
    end
end
complete -c hpcml -f -k -a '(__hpcml_complete)'
complete -c hpcml.pyz -f -k -a '(__hpcml_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_options(parser: ArgumentParser) -> None:
    """Add the name of the shell."""
    parser.epilog = (
        "In ~/.bashrc: . <(hpcml completion bash). In ~/.zshrc, behind compinit: . <(hpcml completion zsh). For fish: "
        "hpcml completion fish > ~/.config/fish/completions/hpcml.fish."
    )
    parser.add_argument("shell", metavar="bash|zsh|fish", choices=tuple(SCRIPTS), help="whose lines to print")
    parser.set_defaults(host=None)  # they are for the shell that the user types in


def run(options: Namespace) -> int:
    """Print a shell's lines."""
    say_lines(SCRIPTS[options.shell].rstrip("\n"))
    return 0
