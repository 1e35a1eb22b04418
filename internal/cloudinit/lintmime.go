package cloudinit

import (
	"bytes"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"strings"
)

// isMIME tells a MIME message as cloud-init does (user_data.py, convert_string).
func isMIME(b []byte) bool {
	return strings.Contains(lower(b, 4096), "mime-version:")
}

// message is a MIME message or one of its parts, header first.
func (l *linter) message(b []byte, line, depth int) {
	if depth > maxDepth {
		l.add(codeBadMIME, line, "parts within parts, more than %d deep: nobody looked into these", maxDepth)
		return
	}
	header, body := cutHeader(b)
	bodyLine := line + bytes.Count(b[:len(b)-len(body)], []byte("\n"))
	kind, boundary, encoding, ok := parseHeader(header)
	switch {
	case !ok:
		l.add(codeBadMIME, line, "the header of this part cannot be parsed: it is lines as \"Content-Type: text/cloud-config\", then an empty line")
	case strings.HasPrefix(kind, "multipart/"):
		l.multipart(body, boundary, bodyLine, depth)
	default:
		l.part(body, kind, encoding, bodyLine, depth)
	}
}

// cutHeader splits at the first empty line, which belongs to the header.
func cutHeader(b []byte) (header, body []byte) {
	for rest := b; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			break
		}
		blank := len(bytes.TrimSpace(rest[:end])) == 0
		rest = rest[end:]
		if blank {
			return b[:len(b)-len(rest)], rest
		}
	}
	return b, nil
}

// parseHeader reads the three values that matter. The first line of a mailbox ("From "),
// which some tools write, is not a header. A part without a type is plain text.
func parseHeader(header []byte) (kind, boundary, encoding string, ok bool) {
	if bytes.HasPrefix(header, []byte("From ")) {
		_, header, _ = bytes.Cut(header, []byte("\n"))
	}
	m, err := mail.ReadMessage(io.MultiReader(bytes.NewReader(bytes.TrimSpace(header)), strings.NewReader("\r\n\r\n")))
	if err != nil {
		return "", "", "", false
	}
	encoding = strings.ToLower(strings.TrimSpace(m.Header.Get("Content-Transfer-Encoding")))
	declared := m.Header.Get("Content-Type")
	if declared == "" {
		return "text/plain", "", encoding, true
	}
	kind, params, err := mime.ParseMediaType(declared)
	return kind, params["boundary"], encoding, err == nil
}

// multipart walks over the parts. It splits by itself rather than with mime/multipart
// because a finding needs the line of its part.
func (l *linter) multipart(body []byte, boundary string, line, depth int) {
	if boundary == "" {
		l.add(codeBadMIME, line, "the Content-Type has no boundary, so that no part can be found: add boundary=\"…\"")
		return
	}
	start, startLine, closed := -1, 0, false
	flush := func(end int) {
		if start >= 0 {
			l.message(body[start:end], startLine, depth+1)
		}
	}
	first := line
	for at := 0; !closed && !l.full() && at < len(body); line++ {
		end := at + bytes.IndexByte(body[at:], '\n') + 1
		if end == at {
			end = len(body)
		}
		switch string(bytes.TrimRight(body[at:end], " \t\r\n")) {
		case "--" + boundary:
			flush(at)
			start, startLine = end, line+1
		case "--" + boundary + "--":
			flush(at)
			closed = true
		}
		at = end
	}
	switch {
	case start < 0:
		l.add(codeBadMIME, first, "no line is the boundary that the Content-Type names, so that there are no parts")
	case !closed:
		flush(len(body))
		l.add(codeBadMIME, line-1, "the line that closes the message is missing (the boundary and --): was it cut off?")
	}
}

// gzipTypes are the types that cloud-init unpacks (user_data.py, DECOMP_TYPES).
var gzipTypes = map[string]bool{
	"application/gzip": true, "application/gzip-compressed": true, "application/gzipped": true,
	"application/x-compress": true, "application/x-compressed": true, "application/x-gunzip": true,
	"application/x-gzip": true, "application/x-gzip-compressed": true,
}

// part lints one part by its declared type, once it is decoded.
func (l *linter) part(body []byte, kind, encoding string, line, depth int) {
	b, ok := decodePart(body, encoding)
	if !ok {
		l.add(codeBadMIME, line, "the part does not decode as the %s that its header announces", encoding)
		return
	}
	lint := func() { l.typed(b, kind, line, depth) }
	if bytes.Equal(b, body) && !gzipTypes[kind] {
		lint()
		return
	}
	l.encoded(line, lint)
}

// typed lints decoded bytes by their declared type.
func (l *linter) typed(b []byte, kind string, line, depth int) {
	if gzipTypes[kind] {
		if plain, ok := l.gunzip(b, line); ok {
			l.text(plain, line, depth)
		}
		return
	}
	f, known := partFormats[kind]
	switch {
	case kind == "text/plain" || kind == "text/x-not-multipart":
		l.text(b, line, depth)
	case !known:
		l.unknownType(kind, line)
	default:
		// A part called a script is whatever it begins as: many tools call all parts so.
		if s := sniff(b); f == formatScript && s != formatUnknown {
			f = s
		}
		if b, ok := l.byteOrderMark(b, line); ok {
			l.content(f, b, line, depth)
		}
	}
}

// unknownType is said of a type that nothing handles, unless a part before brought a
// handler, which could be for just this type.
func (l *linter) unknownType(kind string, line int) {
	if !l.handlers {
		l.add(codeUnknownFormat, line, "cloud-init has no handler for parts of type %s and will ignore this one", show(kind))
	}
}

// decodePart undoes the transfer encoding.
func decodePart(body []byte, encoding string) (b []byte, ok bool) {
	var err error
	switch encoding {
	case "base64":
		b, err = decodeBase64(body)
	case "quoted-printable":
		b, err = io.ReadAll(quotedprintable.NewReader(bytes.NewReader(body)))
	default:
		return body, true
	}
	return b, err == nil
}
