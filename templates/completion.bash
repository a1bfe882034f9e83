_hpcml() {
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
