package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// failure is an error that the command line itself found.
type failure struct {
	code    string // for -o json
	message string
	hint    string // what to do next; may be empty
	cause   error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.cause }

const (
	codeUsage       = "USAGE"
	codeFailed      = "FAILED"
	codeUnreachable = "UNREACHABLE"
	codeTimeout     = "TIMEOUT"
	codeInterrupted = "INTERRUPTED"
	codeNotFound    = "NOT_FOUND"
	codeAmbiguous   = "AMBIGUOUS"
)

func usagef(format string, args ...any) *failure {
	return &failure{code: codeUsage, message: fmt.Sprintf(format, args...)}
}

// report is an error as it is printed.
type report struct {
	Code    string        `json:"code"`
	Message string        `json:"message"`
	Fields  []fault.Field `json:"fields,omitempty"`
	Details any           `json:"details,omitempty"`
	Hint    string        `json:"hint,omitempty"`
}

// printError says what went wrong and what to do next, and returns the exit code.
func (a *app) printError(cmd *cobra.Command, err error) int {
	r := a.describe(cmd, err)
	if a.flags.output == "json" || a.flags.output == "yaml" {
		_ = a.encode(a.stderr, r)
	} else {
		fmt.Fprintln(a.stderr, "outcrop:", clean(r.Message))
		for _, f := range r.Fields {
			fmt.Fprintf(a.stderr, "  %s: %s\n", clean(cmp.Or(f.Path, "the request")), clean(f.Message))
		}
		if r.Hint != "" {
			fmt.Fprintln(a.stderr, "hint:", clean(r.Hint))
		}
	}
	if r.Code == codeUsage {
		return exitUsage
	}
	return exitFailure
}

func (a *app) describe(cmd *cobra.Command, err error) report {
	if f, ok := errors.AsType[*failure](err); ok {
		return report{Code: f.code, Message: f.message, Hint: cmp.Or(f.hint, usageHint(cmd, f.code))}
	}
	if !a.started {
		return report{Code: codeUsage, Message: err.Error(), Hint: usageHint(cmd, codeUsage)}
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return report{Code: f.Code, Message: f.Message, Fields: f.Fields, Details: f.Details, Hint: a.hint(f)}
	}
	if u, ok := errors.AsType[*api.Unreachable](err); ok {
		return report{Code: codeUnreachable, Message: u.Error(),
			Hint: fmt.Sprintf("the address is from %s; \"outcrop up\" starts a server on this machine", a.settings().urlFrom)}
	}
	if errors.Is(err, context.Canceled) {
		return report{Code: codeInterrupted, Message: "interrupted"}
	}
	return report{Code: codeFailed, Message: err.Error()}
}

func usageHint(cmd *cobra.Command, code string) string {
	if code != codeUsage {
		return ""
	}
	return fmt.Sprintf("%q shows how it is used", cmd.CommandPath()+" --help")
}

// hint says what the server cannot know: where this command line got its token.
func (a *app) hint(e *fault.Error) string {
	s := a.settings()
	switch {
	case e.Kind == fault.Unauthenticated && s.token == "":
		return "no token was sent: set OUTCROP_TOKEN or --token-file; on the server's machine " +
			"\"outcrop token create --role operator --data DIR\" makes a new one"
	case e.Kind == fault.Unauthenticated:
		return fmt.Sprintf("the token is from %s; on the server's machine "+
			"\"outcrop token create --role operator --data DIR\" makes a new one", s.tokenFrom)
	case e.Kind == fault.Forbidden:
		return "\"outcrop whoami\" shows whose token it is"
	case e.Kind == fault.TooMany:
		return "wait a little and try again"
	case e.Kind == fault.Internal:
		return "the server's log says more"
	}
	return ""
}

func unknownFlag(err error) string {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return e.GetSpecifiedName()
	}
	return ""
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// sentence makes the words of a list readable: a, b and c.
func sentence(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
