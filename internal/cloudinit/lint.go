package cloudinit

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Finding is one thing in user-data that will probably not do what its author meant.
type Finding struct {
	// Code is one of: EMPTY, NEAR_LIMIT, OVER_LIMIT, UNKNOWN_FORMAT, BASE64, BOM,
	// NOT_UTF8, SHEBANG, CRLF, BAD_YAML, UNKNOWN_KEY, DUPLICATE_KEY, BAD_MIME, BAD_GZIP,
	// TOO_LARGE_UNPACKED. Codes are stable, more may come.
	Code string
	// Message says what is wrong and what to do about it. It quotes nothing of the
	// user-data but the names of top-level keys and of content types.
	Message string
	// Line counts from 1; 0 means the user-data as a whole. In gzip it counts in the
	// unpacked text; for a part that is encoded it is the line where the part begins.
	Line int
}

// The codes of findings.
const (
	codeEmpty            = "EMPTY"
	codeNearLimit        = "NEAR_LIMIT"
	codeOverLimit        = "OVER_LIMIT"
	codeUnknownFormat    = "UNKNOWN_FORMAT"
	codeBase64           = "BASE64"
	codeBOM              = "BOM"
	codeNotUTF8          = "NOT_UTF8"
	codeShebang          = "SHEBANG"
	codeCRLF             = "CRLF"
	codeBadYAML          = "BAD_YAML"
	codeUnknownKey       = "UNKNOWN_KEY"
	codeDuplicateKey     = "DUPLICATE_KEY"
	codeBadMIME          = "BAD_MIME"
	codeBadGzip          = "BAD_GZIP"
	codeTooLargeUnpacked = "TOO_LARGE_UNPACKED"
)

// Bounds of the work that one call does, whatever the bytes are.
const (
	maxFindings = 100
	maxUnpacked = 1 << 20 // bytes out of all gzip streams together
	maxDepth    = 8       // of things within things
)

// Lint looks over user-data as cloud-init (22 to 25) would read it and returns what is
// likely a mistake, in the order of the text. Findings are warnings: user-data is the
// guest's business, and another reader than cloud-init may want exactly these bytes.
// No user-data at all has no findings.
func Lint(userData []byte) []Finding {
	if len(userData) == 0 {
		return nil
	}
	l := linter{budget: maxUnpacked}
	l.size(len(userData))
	l.document(userData, 1, 0)
	return l.findings
}

// linter carries what one call has found and may still spend.
type linter struct {
	findings []Finding
	budget   int
	// pinned, when not 0, is the line that all findings get: inside of something encoded
	// there are no lines that the author could look up.
	pinned int
	// handlers is set once a part brings a handler: then any type may have one.
	handlers bool
}

func (l *linter) add(code string, line int, format string, args ...any) {
	if l.pinned != 0 {
		line = l.pinned
	}
	if !l.full() {
		l.findings = append(l.findings, Finding{Code: code, Message: fmt.Sprintf(format, args...), Line: line})
	}
}

// full says that nothing more will be reported, and so nothing more need be looked at.
func (l *linter) full() bool {
	return len(l.findings) >= maxFindings
}

// encoded runs f with all its findings put on one line.
func (l *linter) encoded(line int, f func()) {
	if l.pinned == 0 {
		l.pinned = line
		defer func() { l.pinned = 0 }()
	}
	f()
}

func (l *linter) size(n int) {
	switch {
	case n > MaxUserData:
		l.add(codeOverLimit, 0, "%d bytes of user-data, and the limit is %d: compress it with gzip, or fetch the larger part from the guest", n, MaxUserData)
	case n >= MaxUserData*9/10:
		l.add(codeNearLimit, 0, "%d bytes of user-data come close to the limit of %d: gzip makes room, cloud-init unpacks it", n, MaxUserData)
	}
}

// document is a whole user-data: unpacked first, then a MIME message or a single text
// (user_data.py, convert_string).
func (l *linter) document(b []byte, line, depth int) {
	if isGzip(b) && depth == 0 {
		if plain, ok := l.gunzip(b, line); ok {
			l.document(plain, line, depth+1)
		}
		return
	}
	if isMIME(b) {
		l.message(b, line, depth)
		return
	}
	l.text(b, line, depth)
}

// text is a single text whose type its first characters tell.
func (l *linter) text(b []byte, line, depth int) {
	b, ok := l.byteOrderMark(b, line)
	if !ok {
		return
	}
	if len(bytes.TrimSpace(b)) == 0 {
		l.add(codeEmpty, line, "there is nothing but white space: cloud-init will do nothing")
		return
	}
	f := sniff(b)
	switch {
	case f == formatUnknown:
		l.unknown(b, line)
	case !utf8.Valid(b):
		l.add(codeNotUTF8, line, "cloud-init takes a text only when all of it is UTF-8 and would ignore this one: save it as UTF-8, or send it as a part of a MIME message with a type and an encoding of its own")
	default:
		l.content(f, b, line, depth)
	}
}

// byteOrderMark drops a mark that an editor left; ok is false when what follows it
// cannot be read at all.
func (l *linter) byteOrderMark(b []byte, line int) (rest []byte, ok bool) {
	if rest, found := bytes.CutPrefix(b, []byte("\xef\xbb\xbf")); found {
		l.add(codeBOM, line, "a byte-order mark stands before the first line, so that cloud-init does not recognise it: save as UTF-8 without BOM")
		return rest, true
	}
	if bytes.HasPrefix(b, []byte("\xff\xfe")) || bytes.HasPrefix(b, []byte("\xfe\xff")) {
		l.add(codeBOM, line, "this is UTF-16, which cloud-init cannot read: save as UTF-8 without BOM")
		return nil, false
	}
	return b, true
}

// content looks into a text of a known format.
func (l *linter) content(f format, b []byte, line, depth int) {
	if depth > maxDepth {
		l.add(codeBadMIME, line, "parts within parts, more than %d deep: cloud-init may do the same, but nobody looked into these", maxDepth)
		return
	}
	switch f {
	case formatScript:
		l.script(b, line)
	case formatBoothook:
		l.boothook(b, line)
	case formatCloudConfig:
		l.cloudConfig(b, line)
	case formatArchive:
		l.archive(b, line, depth)
	case formatJinja:
		l.jinja(b, line)
	case formatPartHandler:
		l.handlers = true
	}
}

// script is run by the kernel, which wants "#!" as the very first bytes.
func (l *linter) script(b []byte, line int) {
	if trimmed := bytes.TrimSpace(b); !bytes.HasPrefix(b, []byte("#!")) {
		if bytes.HasPrefix(trimmed, []byte("#!")) {
			l.add(codeShebang, line, "white space stands before #!, so that the guest cannot run the script: begin with #! in the first column of the first line")
		} else {
			l.add(codeShebang, line, "the script does not begin with #!, so that the guest cannot run it: begin it with its interpreter, as in #!/bin/sh")
		}
	}
	l.crlf(b, line)
}

// boothook is a script with a line of its own before the interpreter.
func (l *linter) boothook(b []byte, line int) {
	rest := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(b), []byte(formatNames[formatBoothook])))
	if !bytes.HasPrefix(rest, []byte("#!")) {
		l.add(codeShebang, line, "no line with an interpreter follows #cloud-boothook, so that the guest cannot run it: make the second line one as #!/bin/sh")
	}
	l.crlf(b, line)
}

// crlf knows what cloud-init does (util.py, dos2unix): it mends the ends of all lines
// when the first line has one, and none otherwise.
func (l *linter) crlf(b []byte, line int) {
	at := bytes.Index(b, []byte("\r\n"))
	if at < 0 {
		return
	}
	first := bytes.IndexByte(b, '\n')
	if at+1 == first {
		l.add(codeCRLF, line, "lines end in CRLF: cloud-init mends that, other readers look for an interpreter with a carriage return in its name; save with LF")
		return
	}
	l.add(codeCRLF, line+bytes.Count(b[:at], []byte("\n")), "some lines end in CRLF, so that the carriage return becomes part of the command: save all with LF")
}

// jinja is a template; only what it will become can be told from here.
func (l *linter) jinja(b []byte, line int) {
	_, rest, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	rest = bytes.TrimSpace(rest)
	if bytes.HasPrefix(rest, []byte("{")) {
		return // begins with what the template makes
	}
	if sniff(rest) == formatUnknown {
		l.add(codeUnknownFormat, line+1, "the line after \"## template: jinja\" must say what the template makes: #cloud-config or #!")
	}
}

// unknown explains a text that cloud-init would ignore.
func (l *linter) unknown(b []byte, line int) {
	if what := base64Of(b); what != "" {
		l.add(codeBase64, line, "this is base64 of %s, and user-data is taken as it is: send the decoded bytes", what)
		return
	}
	l.add(codeUnknownFormat, line, "cloud-init does not know what this is and will ignore it%s", hint(b))
}

// base64Of names what is hidden in base64, or returns "" when it is not base64 or hides
// nothing that would make sense as user-data. Encoding twice is the usual accident.
func base64Of(b []byte) string {
	for range 3 {
		plain, err := decodeBase64(b)
		if err != nil || len(plain) == 0 {
			return ""
		}
		switch f := sniff(plain); {
		case isGzip(plain):
			return "gzip"
		case isMIME(plain):
			return "a MIME message"
		case f != formatUnknown:
			return formatNames[f]
		}
		b = plain
	}
	return ""
}

// decodeBase64 takes both alphabets' common ground: standard, padded, in lines or not.
func decodeBase64(b []byte) ([]byte, error) {
	packed := bytes.Join(bytes.Fields(b), nil)
	plain := make([]byte, base64.StdEncoding.DecodedLen(len(packed)))
	n, err := base64.StdEncoding.Decode(plain, packed)
	return plain[:n], err
}

func isGzip(b []byte) bool {
	return bytes.HasPrefix(b, []byte("\x1f\x8b"))
}

// gunzip unpacks within the budget that all streams of one user-data share.
func (l *linter) gunzip(b []byte, line int) (plain []byte, ok bool) {
	if l.budget < 0 {
		return nil, false // said once
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(z, int64(l.budget)+1))
	}
	if len(plain) > l.budget {
		l.budget = -1
		l.add(codeTooLargeUnpacked, line, "unpacked it is more than %d bytes: nobody looked further, and the guest needs the memory for it", maxUnpacked)
		return nil, false
	}
	l.budget -= len(plain)
	if err != nil {
		l.add(codeBadGzip, line, "it begins as gzip but does not unpack (%s), so that cloud-init will take it for text: pack it again", gzipProblem(err))
		return nil, false
	}
	return plain, true
}

func gzipProblem(err error) string {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the end is missing"
	case errors.Is(err, gzip.ErrChecksum):
		return "the checksum is wrong"
	}
	return "it is damaged"
}

// lower returns the first n bytes in lower case, for cloud-init compares without case.
func lower(b []byte, n int) string {
	return strings.ToLower(string(b[:min(n, len(b))]))
}
