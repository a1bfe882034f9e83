function __hpcml_complete
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
