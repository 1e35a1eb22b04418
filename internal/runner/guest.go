package runner

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// guestHead and guestTail stand around the command in the user-data of a job's
// instance. Any POSIX shell with dd, base64 and setsid will do.
//
// Each piece of output is a line "MARK out NUMBER LENGTH BASE64", the end is
// "MARK end EXIT PIECES": whole lines that a console may show among others, that a
// reader can find again in any later part of the console, and that show when one is
// missing. The pause keeps the pace below what is read from a console's end.
const guestHead = `#!/bin/sh
m=%s
d=/run/outcrop-job
umask 077
mkdir -p $d/work && cd $d/work && mkfifo ../out || { echo "$m end 125 0"; exit; }
dmesg -n 1 2>/dev/null
[ -n "$HOME" ] && [ "$HOME" != / ] || export HOME=$d/work
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
( i=0
while c=$(dd bs=3072 count=1 2>/dev/null | base64 -w 0) && [ -n "$c" ]; do
	echo "$m out $i ${#c} $c"
	i=$((i+1))
	echo $i >../pieces
	sleep 0.05
done ) <../out &
r=$!
setsid env `

const guestTail = ` >../out 2>&1 </dev/null &
p=$!
wait $p
x=$?
kill -9 -$p 2>/dev/null
( sleep 5; kill $r ) >/dev/null 2>&1 &
wait $r
n=$(cat ../pieces 2>/dev/null)
echo "$m end $x ${n:-0}"
echo "$m end $x ${n:-0}"
`

// guestScript is the user-data that runs the job's command.
func guestScript(mark string, j *Job) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, guestHead, mark)
	var words []string
	for _, name := range slices.Sorted(maps.Keys(j.Env)) {
		words = append(words, shellWord(name+"="+j.Env[name]))
	}
	if strings.Contains(j.Command[0], "=") { // env would take it for a variable
		words = append(words, "sh", "-c", `'exec "$0" "$@"'`)
	}
	for _, word := range j.Command {
		words = append(words, shellWord(word))
	}
	b.WriteString(strings.Join(words, " "))
	b.WriteString(guestTail)
	return b.Bytes()
}

// shellWord is text as one word of a POSIX shell, whatever it holds.
func shellWord(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// console takes a job's output and end out of its instance's console.
type console struct {
	mark  string
	out   io.Writer
	next  int64 // number of the next piece
	exit  int64
	ended bool
}

func newConsole(mark string, out io.Writer) *console { return &console{mark: mark, out: out} }

// read takes the end of the console as it is now. What was read before is passed
// over. A line that has not come whole yet is left for the next time.
func (c *console) read(text []byte) {
	for !c.ended {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return
		}
		text = rest
		if _, words, ok := strings.Cut(string(line), c.mark+" "); ok {
			c.line(strings.Fields(words))
		}
	}
}

func (c *console) line(words []string) {
	switch {
	case len(words) == 4 && words[0] == "out":
		number, err := strconv.ParseInt(words[1], 10, 64)
		data, err2 := base64.StdEncoding.DecodeString(words[3])
		if err != nil || err2 != nil || number < c.next || words[2] != strconv.Itoa(len(words[3])) {
			return // seen before, or something else wrote into the line
		}
		c.missing(number)
		_, _ = c.out.Write(data)
		c.next = number + 1
	case len(words) == 3 && words[0] == "end":
		exit, err := strconv.ParseInt(words[1], 10, 32)
		pieces, err2 := strconv.ParseInt(words[2], 10, 64)
		if err != nil || err2 != nil {
			return
		}
		c.missing(pieces)
		c.exit, c.ended = exit, true
	}
}

// missing tells the log's reader what the console did not bring.
func (c *console) missing(number int64) {
	if n := number - c.next; n > 0 {
		fmt.Fprintf(c.out, "\noutcrop: %d pieces of the output, of 3072 bytes at most, were lost on the console\n", n)
	}
}
