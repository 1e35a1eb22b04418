package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

var workColumns = []field[api.Work]{
	{"ID", func(v *api.Work, _ time.Time) string { return v.ID }},
	{"NAME", func(v *api.Work, _ time.Time) string { return v.Name }},
	{"STATE", func(v *api.Work, _ time.Time) string { return v.State }},
	{"HOST", func(v *api.Work, _ time.Time) string { return deref(v.Host) }},
	{"TRY", func(v *api.Work, _ time.Time) string { return fmt.Sprintf("%d/%d", v.Attempt, v.MaxAttempts) }},
	{"ALIVE", func(v *api.Work, now time.Time) string { return whileHeld(v, v.AliveAt, now) }},
	{"PROGRESS", func(v *api.Work, now time.Time) string { return whileHeld(v, v.ProgressAt, now) }},
	{"AGE", func(v *api.Work, now time.Time) string { return age(v.CreatedAt, now) }},
	{"COMMAND", func(v *api.Work, _ time.Time) string { return shorten(strings.Join(v.Command, " "), 40) }},
}

// whileHeld is the age of a sign of life, which says something only while a host
// holds the job. Alive and getting on are two things.
func whileHeld(v *api.Work, at *time.Time, now time.Time) string {
	if v.LeaseUntil == nil {
		return ""
	}
	return age(orZero(at), now)
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

var workDetails = []field[api.Work]{
	{"Id", func(v *api.Work, _ time.Time) string { return v.ID }},
	{"Name", func(v *api.Work, _ time.Time) string { return v.Name }},
	{"State", func(v *api.Work, _ time.Time) string { return v.State }},
	{"Message", func(v *api.Work, _ time.Time) string { return deref(v.Message) }},
	{"Exit code", func(v *api.Work, _ time.Time) string {
		if v.ExitCode == nil {
			return ""
		}
		return fmt.Sprint(*v.ExitCode)
	}},
	{"Command", func(v *api.Work, _ time.Time) string { return fmt.Sprintf("%q", v.Command) }},
	{"Variables", func(v *api.Work, _ time.Time) string { return strings.Join(v.EnvNames, ", ") }},
	{"Image", func(v *api.Work, _ time.Time) string { return v.Image }},
	{"Needs", func(v *api.Work, _ time.Time) string {
		return fmt.Sprintf("%s memory, %s disk, %s at most", formatSize(v.MemoryBytes), formatSize(v.DiskBytes), time.Duration(v.TimeoutSeconds)*time.Second)
	}},
	{"Attempt", func(v *api.Work, _ time.Time) string { return fmt.Sprintf("%d of %d", v.Attempt, v.MaxAttempts) }},
	{"Host", func(v *api.Work, _ time.Time) string { return deref(v.Host) }},
	{"Alive", func(v *api.Work, now time.Time) string { return moment(orZero(v.AliveAt), now) }},
	{"Progress", func(v *api.Work, now time.Time) string { return moment(orZero(v.ProgressAt), now) }},
	{"Created", func(v *api.Work, now time.Time) string { return moment(v.CreatedAt, now) }},
	{"Started", func(v *api.Work, now time.Time) string { return moment(orZero(v.StartedAt), now) }},
	{"Finished", func(v *api.Work, now time.Time) string { return moment(orZero(v.FinishedAt), now) }},
}

func workID(v *api.Work) string { return v.ID }

func newWork(a *app) *cobra.Command {
	in := newInApp(a)
	c := group("work", "Queue jobs for runner hosts and follow them",
		`A job is a command that a runner host runs, in an instance of its own where the
host can boot one. Creators of jobs take turns. A host holds a job by a lease that
it renews; a job whose host falls silent goes to another, a few times.`,
		"  outcrop work create --name build -- make -j4\n  outcrop work logs --follow 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11", []string{"job", "jobs"},
		newWorkCreate(in), newWorkList(in),
		workVerb(in, "get", []string{"show", "describe"}, http.MethodGet, nil, text{"Show one job", "Shows one job: where it runs, whether its host is alive, whether its command gets on, how it ended.", "  outcrop work get 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11"}),
		workVerb(in, "cancel", []string{"stop"}, http.MethodPost, []string{"cancel"}, text{"Cancel a job", "Takes a job out of the queue, or has its host stop it at the next renewal.", "  outcrop work cancel 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11"}),
		newWorkLogs(in),
	)
	in.addFlag(c)
	return c
}

// workVerb is a command about one job that answers with the job.
func workVerb(in *inApp, use string, aliases []string, method string, more []string, t text) *cobra.Command {
	return command(use, t, aliases, []string{"JOB"}, func(cmd *cobra.Command, args []string) error {
		if err := jobID(args[0]); err != nil {
			return err
		}
		var it item[api.Work]
		if err := in.do(cmd.Context(), method, api.WorkPath(args[0], more...), nil, &it); err != nil {
			return err
		}
		return printOne(in.a, it, workDetails, workID)
	})
}

func jobID(word string) error {
	if fleet.CanonicalID(word) == "" {
		return usagef("a job goes by its id, a UUID, not %q", word)
	}
	return nil
}

func newWorkCreate(in *inApp) *cobra.Command {
	var body api.QueueWork
	var env []string
	var memory, disk string
	var timeout time.Duration
	c := command("create", text{"Queue a job",
		`Queues a command, which stands after "--" as it is: no shell looks at it. The values
of --env are seen by the host that runs the job, and in no list.`,
		`  outcrop work create --name build -- make -j4
  outcrop work create --image debian --memory 4GiB --timeout 30m --env CI=1 -- sh -c 'make && make test'`},
		[]string{"add", "run", "queue"}, nil, func(cmd *cobra.Command, args []string) error {
			var err error
			if body.Command = args; len(args) == 0 {
				return usagef(`the command is missing; it stands after "--"`)
			}
			if body.Env, err = parsePairs("env", env); err != nil {
				return err
			}
			for flag, set := range map[string]struct {
				text string
				dest *int64
			}{"memory": {memory, &body.MemoryBytes}, "disk": {disk, &body.DiskBytes}} {
				if set.text == "" {
					continue
				}
				if *set.dest, err = parseSize(set.text); err != nil {
					return usagef("--%s: %s", flag, err)
				}
			}
			body.TimeoutSeconds = int64(timeout / time.Second)
			var it item[api.Work]
			if err := in.post(cmd.Context(), api.WorkPath(""), &body, &it); err != nil {
				return err
			}
			if in.a.flags.output != "table" {
				return printOne(in.a, it, workDetails, workID)
			}
			return printList(in.a, []item[api.Work]{it}, workColumns, workID)
		})
	c.Use, c.Args = "create [flags] -- COMMAND [ARGUMENT…]", nil
	f := c.Flags()
	f.StringVar(&body.Name, "name", "", "name for lists")
	f.StringArrayVar(&env, "env", nil, "variable for the command, NAME=value (repeatable)")
	f.StringVar(&body.Image, "image", "", "runner image to run it in (the host's default where it is left out)")
	f.DurationVar(&timeout, "run-timeout", time.Hour, "how long one attempt may take")
	f.StringVar(&memory, "memory", "", "memory that it needs, like 4GiB")
	f.StringVar(&disk, "disk", "", "disk that it needs, like 20GiB")
	f.Int64Var(&body.MaxAttempts, "attempts", fleet.DefaultAttempts, "how often a host may begin with it")
	return c
}

func newWorkList(in *inApp) *cobra.Command {
	var state string
	c := command("list", text{"List the jobs",
		`Lists the app's jobs, oldest first. ALIVE is how long ago the host renewed its lease,
PROGRESS how long ago the command itself got on.`,
		"  outcrop work list\n  outcrop work list --state running"}, []string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
		path := api.WorkPath("")
		if state != "" {
			path += "?state=" + url.QueryEscape(state)
		}
		items, err := listIn[api.Work](cmd.Context(), in, path)
		if err != nil {
			return err
		}
		return printList(in.a, items, workColumns, workID)
	})
	var words []string
	for _, s := range fleet.JobStates {
		words = append(words, string(s))
	}
	c.Flags().StringVar(&state, "state", "", "only jobs that are "+strings.Join(words, ", "))
	completeWords(c, "state", words...)
	return c
}

// logPause is how long --follow waits before it asks again.
const logPause = time.Second

func newWorkLogs(in *inApp) *cobra.Command {
	var follow bool
	c := command("logs", text{"Print the output of a job", "Prints what the job's last attempt has written so far, byte for byte. --follow goes on until the job is over.",
		"  outcrop work logs 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11\n  outcrop work logs -f 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11"}, []string{"log"}, []string{"JOB"}, func(cmd *cobra.Command, args []string) error {
		if err := jobID(args[0]); err != nil {
			return err
		}
		return in.copyLog(cmd.Context(), args[0], follow)
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job is over")
	return c
}

// copyLog writes a log to standard output. When another attempt begins, its log
// follows from its start.
func (in *inApp) copyLog(ctx context.Context, id string, follow bool) error {
	var offset, attempt int64
	for {
		var l api.WorkLog
		if err := in.do(ctx, http.MethodGet, fmt.Sprintf("%s?offset=%d", api.WorkPath(id, "logs"), offset), nil, &l); err != nil {
			return err
		}
		if attempt != 0 && l.Attempt != attempt && offset > 0 {
			in.a.notef("attempt %d begins", l.Attempt)
			attempt, offset = l.Attempt, 0
			continue
		}
		if _, err := in.a.stdout.Write(l.Data); err != nil {
			return err
		}
		attempt, offset = l.Attempt, l.Next
		switch {
		case l.End || len(l.Data) == 0 && !follow:
			return nil
		case len(l.Data) > 0:
			continue
		}
		select {
		case <-in.a.after(logPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
