package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// field is one column of a table, or one line of a single thing.
type field[T any] struct {
	title string
	text  func(v *T, now time.Time) string
}

func (a *app) checkOutput() error {
	switch a.flags.output {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("--output is table, json or yaml, not %q", a.flags.output)
}

// encode writes v as JSON or YAML, as -o says.
func (a *app) encode(w io.Writer, v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	text := b.String()
	if a.flags.output == "yaml" {
		y, err := yaml.JSONToYAML([]byte(text))
		if err != nil {
			return err
		}
		text = string(y)
	}
	_, err := io.WriteString(w, text)
	return err
}

// printList prints many things: a table, their ids, or an array.
func printList[T any](a *app, items []item[T], fields []field[T], id func(*T) string) error {
	switch {
	case a.flags.quiet:
		return printIDs(a, items, id)
	case a.flags.output != "table":
		return a.encode(a.stdout, items)
	}
	rows := make([][]string, 1, len(items)+1)
	for _, f := range fields {
		rows[0] = append(rows[0], f.title)
	}
	now := a.now()
	for i := range items {
		var row []string
		for _, f := range fields {
			row = append(row, orDash(f.text(&items[i].value, now)))
		}
		rows = append(rows, row)
	}
	return table(a.stdout, rows)
}

func printIDs[T any](a *app, items []item[T], id func(*T) string) error {
	for i := range items {
		if _, err := fmt.Fprintln(a.stdout, id(&items[i].value)); err != nil {
			return err
		}
	}
	return nil
}

// printOne prints one thing: a line for each field that has a value, its id, or
// an object.
func printOne[T any](a *app, it item[T], fields []field[T], id func(*T) string) error {
	switch {
	case a.flags.quiet:
		return printIDs(a, []item[T]{it}, id)
	case a.flags.output != "table":
		return a.encode(a.stdout, it)
	}
	var rows [][]string
	now := a.now()
	for _, f := range fields {
		if text := f.text(&it.value, now); text != "" {
			rows = append(rows, []string{f.title + ":", text})
		}
	}
	return table(a.stdout, rows)
}

// table writes rows whose columns line up, two spaces apart.
func table(w io.Writer, rows [][]string) error {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			row[i] = clean(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// clean keeps a text from another's hand (a name, a message) from moving the
// cursor of this terminal or faking lines.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

// notef tells a person something on stderr.
func (a *app) notef(format string, args ...any) {
	if !a.flags.quiet {
		fmt.Fprintln(a.stderr, clean(fmt.Sprintf(format, args...)))
	}
}
