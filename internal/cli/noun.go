package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// noun is a kind of thing that the API lists, and how it is shown.
type noun[T any] struct {
	one, command string                         // "instance type", "instance-type"
	path         func(a *app, id string) string // of one thing, or of all with an empty id
	id, name     func(*T) string                // name is nil where things go by id only
	isID         func(string) bool              // a word of this form is an id at once
	hidden       func(*T) bool                  // not found by name; may be nil
	columns      []field[T]                     // of a list
	details      []field[T]                     // of one
}

func (n *noun[T]) listCommand(a *app, t text) *cobra.Command {
	return command("list", t, []string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
		items, err := list[T](cmd.Context(), a, n.path(a, ""))
		if err != nil {
			return err
		}
		return printList(a, items, n.columns, n.id)
	})
}

func (n *noun[T]) getCommand(a *app, t text) *cobra.Command {
	c := command("get", t, []string{"show", "describe"}, []string{n.argument()}, func(cmd *cobra.Command, args []string) error {
		id, err := n.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		it, err := n.get(cmd.Context(), a, id)
		if err != nil {
			return err
		}
		return printOne(a, it, n.details, n.id)
	})
	c.ValidArgsFunction = n.complete(a)
	return c
}

// deleteCommand removes one thing; verb is delete or revoke, past deleted or revoked.
func (n *noun[T]) deleteCommand(a *app, verb, past string, aliases []string, t text) *cobra.Command {
	c := command(verb, t, aliases, []string{n.argument()}, func(cmd *cobra.Command, args []string) error {
		id, err := n.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		if err := a.do(cmd.Context(), http.MethodDelete, n.path(a, id), nil, nil); err != nil {
			return err
		}
		a.notef("%s %s is %s", n.one, args[0], past)
		return nil
	})
	c.ValidArgsFunction = n.complete(a)
	return c
}

func (n *noun[T]) argument() string {
	return strings.ToUpper(strings.ReplaceAll(n.one, " ", "-"))
}

func (n *noun[T]) get(ctx context.Context, a *app, id string) (it item[T], err error) {
	err = a.do(ctx, http.MethodGet, n.path(a, id), nil, &it)
	return it, err
}

// resolve finds the id that word stands for: an id as it is, or a name that
// exactly one thing has.
func (n *noun[T]) resolve(ctx context.Context, a *app, word string) (string, error) {
	if word == "" {
		return "", usagef("the %s's name is empty", n.one)
	}
	if n.name == nil || n.isID(word) {
		return word, nil
	}
	items, err := list[T](ctx, a, n.path(a, ""))
	if err != nil {
		return "", err
	}
	var ids []string
	for i := range items {
		v := &items[i].value
		if n.id(v) == word {
			return word, nil
		}
		if n.name(v) == word && (n.hidden == nil || !n.hidden(v)) {
			ids = append(ids, n.id(v))
		}
	}
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", &failure{code: codeNotFound,
			message: fmt.Sprintf("there is no %s %q in project %q", n.one, word, a.settings().project),
			hint:    fmt.Sprintf("\"outcrop %s list\" shows what there is", n.command)}
	}
	slices.Sort(ids)
	return "", &failure{code: codeAmbiguous,
		message: fmt.Sprintf("%d %ss are named %q: %s", len(ids), n.one, word, sentence(ids)),
		hint:    "use one of the ids"}
}

// completionPatience bounds what a press of the tab key may wait for.
const completionPatience = 2 * time.Second

// complete offers the names and ids of things to the shell.
func (n *noun[T]) complete(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		items, err := list[T](ctx, a, n.path(a, ""))
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var words []cobra.Completion
		for i := range items {
			v := &items[i].value
			word := n.id(v)
			if n.name != nil && n.name(v) != "" {
				word = cobra.CompletionWithDesc(clean(n.name(v)), word)
			}
			words = append(words, word)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeWords offers fixed words for a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that is not there, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// pathOf is a list's path, or that of the thing with the id.
func pathOf(list, id string) string {
	if id == "" {
		return list
	}
	return list + "/" + url.PathEscape(id)
}
