#compdef hpcml hpcml.pyz
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
