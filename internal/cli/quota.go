package cli

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

func newProjectQuota(a *app) *cobra.Command {
	var instances, vcpus, memory, disk string
	c := command("quota", text{"Show or set what a project may hold",
		`Without flags shows the limits of a project and what it holds. With flags an
operator sets limits; "none" takes one away. What a project holds beyond a new
limit it keeps, and gets no more.`,
		"  outcrop project quota shop\n  outcrop project quota shop --instances 20 --vcpus 40 --memory 160GiB --disk 2TiB\n  outcrop project quota shop --vcpus none"},
		nil, []string{projects.argument()}, func(cmd *cobra.Command, args []string) error {
			var in api.PatchQuota
			changed := false
			for _, flag := range []struct {
				name, text string
				to         *api.Nullable[int64]
				parse      func(string) (int64, error)
			}{
				{"instances", instances, &in.Instances, parseCount}, {"vcpus", vcpus, &in.VCPUs, parseCount},
				{"memory", memory, &in.MemoryBytes, parseSize}, {"disk", disk, &in.DiskBytes, parseSize},
			} {
				if !cmd.Flags().Changed(flag.name) {
					continue
				}
				changed = true
				n, err := orNone(flag.text, flag.parse)
				if err != nil {
					return usagef("--%s: %s", flag.name, err)
				}
				*flag.to = n
			}
			method, path := http.MethodGet, projects.path(a, args[0])+"/quota"
			var it item[api.Quota]
			var body any
			if changed {
				method, body = http.MethodPatch, &in
			}
			if err := a.do(cmd.Context(), method, path, body, &it); err != nil {
				return err
			}
			if a.flags.output != "table" {
				return a.encode(a.stdout, it)
			}
			return a.printQuota(&it.value)
		})
	f := c.Flags()
	f.StringVar(&instances, "instances", "", "how many instances, or none for no limit")
	f.StringVar(&vcpus, "vcpus", "", "vCPUs of all instances, or none")
	f.StringVar(&memory, "memory", "", "memory of all instances, like 64GiB, or none")
	f.StringVar(&disk, "disk", "", "size of all volumes, like 1TiB, or none")
	c.ValidArgsFunction = projects.complete(a)
	return c
}

// orNone reads a value, or null for "none".
func orNone(s string, parse func(string) (int64, error)) (api.Nullable[int64], error) {
	if s == "none" {
		return api.Nullable[int64]{Set: true, Null: true}, nil
	}
	n, err := parse(s)
	if err != nil {
		err = fmt.Errorf("%q is not a limit; write a number or a size, or none", s)
	}
	return api.Nullable[int64]{Set: true, Value: n}, err
}

func (a *app) printQuota(q *api.Quota) error {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	rows := [][]string{{"RESOURCE", "USED", "LIMIT"}}
	for _, r := range []struct {
		name  string
		used  int64
		limit *int64
		text  func(int64) string
	}{
		{"instances", q.Used.Instances, q.Limits.Instances, count}, {"vCPUs", q.Used.VCPUs, q.Limits.VCPUs, count},
		{"memory", q.Used.MemoryBytes, q.Limits.MemoryBytes, formatSize}, {"disk", q.Used.DiskBytes, q.Limits.DiskBytes, formatSize},
	} {
		limit := "none"
		if r.limit != nil {
			limit = r.text(*r.limit)
		}
		rows = append(rows, []string{r.name, r.text(r.used), limit})
	}
	return table(a.stdout, rows)
}
