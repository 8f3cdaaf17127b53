#!/usr/bin/env bash
# Serve MODEL on PORT in the foreground and print, once it answers, a request to try. Ctrl-C drains.
#   tests/tools/serve.sh MODEL PORT
set -euo pipefail
model=$1
port=$2

ready() { # status line of GET /ready is 200
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf 'GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' >&3
    read -r -t 5 status <&3 || status=""
    exec 3>&- 3<&-
    [[ $status == *" 200 "* ]]
}

announce() {
    until ready 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.2
    done
    cat <<EOF

Geryon is ready. Try, from another terminal (Ctrl-C here ends the server):

  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages":[{"role":"user","content":"What is the capital of France? Answer in one sentence."}],"max_tokens":60,"stream":true}'

EOF
}

announce $$ &
exec build/geryon serve --model "$model" --port "$port"
