package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/await"
	"github.com/onpath/onpath/cli/labels"
	"github.com/onpath/onpath/cli/render"
)

type applyFlags struct {
	*global
	files    []string
	dryRun   bool
	confirm  time.Duration
	wait     bool
	noVerify bool
	prune    bool
	timeout  time.Duration
	all      []*manifest.Document // of all files
	sel      labels.Selector      // what -l chooses
	notes    []string             // of what the server does not know
}

func newApply(g *global) *cobra.Command {
	a := &applyFlags{global: g}
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "Make objects as files say", GroupID: groupUse,
		Long: `Make objects as files say: create what is not there, change what differs, leave
the rest alone; all or nothing (at most 2,000 change at once), and the same again
does nothing. Images that are files are pushed to the server first, but by a dry
run, which changes nothing there.

The rules that would follow are proved before anything is written, as by onpath
verify; if a flow would leave the way that its chains promise, nothing is done.

-l takes only those objects of the files that have the labels. With --prune, objects
that have them and are in no file are deleted, all or nothing with the rest: of the
tenants that the files name, and no nodes, tenants, cloudlets, reservations and prices.

--wait ends early (exit code 10) if only a person can change what is missing: no node
can run an instance, an image does not exist, a gateway waits for onpath node accept.

Wrong input is named with file, line and column, and changes nothing (exit code 2).`,
		Example: examples("onpath apply -f examples/quickstart", "onpath apply -f web.yaml --dry-run",
			"onpath apply -f shop/ --prune -l app=shop",
			"onpath apply -f web.yaml --confirm 60s && curl -s http://198.51.100.10 && onpath confirm ID",
			"generate | onpath apply -f - --wait"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.run(c) },
	}
	f := c.Flags()
	f.StringArrayVarP(&a.files, "file", "f", nil, "file, directory (its *.yaml, *.yml, *.json) or - for stdin; may be repeated")
	f.BoolVar(&a.prune, "prune", false, "delete what -l chooses and no file has")
	a.selectorFlag(c, "only objects of the files with these labels")
	a.changeFlags(c)
	return c
}

// changeFlags say how a change is made.
func (a *applyFlags) changeFlags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&a.dryRun, "dry-run", false, "change nothing and push no image; show what would change in objects, instances and rules")
	f.DurationVar(&a.confirm, "confirm", 0, "undo everything after this time (1s to 24h) unless onpath confirm comes; onpath confirm "+
		"alone lists what waits")
	f.BoolVar(&a.noVerify, "no-verify", false, "leave out the proof that the rules which follow keep the chains' promises")
	f.BoolVar(&a.wait, "wait", false, "wait until the changed chains carry traffic, and the changed deployments have their instances")
	f.DurationVar(&a.timeout, "timeout", 2*time.Minute, "how long --wait waits")
}

// check refuses flags that do not go together.
func (a *applyFlags) check(c *cobra.Command) error {
	if err := a.checkOutput(); err != nil {
		return err
	}
	if a.dryRun && (a.confirm != 0 || a.wait) {
		return badUsage("--dry-run changes nothing: there is nothing to confirm or to wait for")
	}
	if a.timeout <= 0 {
		return badUsage("--timeout %s: write how long --wait waits, such as 2m", a.timeout)
	}
	if c.Flags().Changed("confirm") {
		if err := wire.ConfirmRange(a.confirm); err != nil {
			return badUsage("--confirm: %w", err)
		}
	}
	return nil
}

func (a *applyFlags) run(c *cobra.Command) error {
	if err := a.check(c); err != nil {
		return err
	}
	if a.prune && a.selector == "" {
		return badUsage("--prune needs -l: it deletes what has those labels and is in no file, such as -l app=shop")
	}
	sel, err := a.chosen(nil)
	if err != nil {
		return err
	}
	docs, err := loadFiles(c, a.files)
	if err != nil {
		return err
	}
	a.all, a.sel = docs, sel
	docs = slices.DeleteFunc(slices.Clone(docs), func(d *manifest.Document) bool { return !sel.Matches(d.Object.Meta().Labels) })
	if len(docs) == 0 && !a.prune {
		return badUsage("no object of the files has the labels of -l %s", a.selector)
	}
	return a.apply(c, docs)
}

// apply makes the documents' objects, and waits for them if it is to. With --prune, what
// is chosen and in no file goes.
func (a *applyFlags) apply(c *cobra.Command, docs []*manifest.Document) error {
	warnOfCut(c.ErrOrStderr(), docs)
	for _, d := range docs {
		a.notes = append(a.notes, d.Notes...)
	}
	cl, err := a.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := a.pushImages(c, cl, docs); err != nil {
		return manifest.Locate(docs, err)
	}
	o := client.ApplyOptions{DryRun: a.dryRun, Confirm: a.confirm, NoVerify: a.noVerify}
	if a.prune {
		if o.Delete, err = a.surplus(c.Context(), cl); err != nil {
			return err
		}
	}
	if len(docs)+len(o.Delete) == 0 {
		fmt.Fprintf(c.ErrOrStderr(), "nothing to do: no object of the files, and none to prune, has the labels of -l %s\n", a.selector)
		return nil
	}
	applied, err := cl.Apply(c.Context(), manifest.Objects(docs), o)
	if err != nil {
		return manifest.Locate(docs, err)
	}
	if applied.Notes = append(applied.Notes, a.notes...); applied.Preview != nil {
		applied.Preview.Notes = append(applied.Preview.Notes, a.notes...)
	}
	if err := a.printApplied(c, applied); err != nil {
		return err
	}
	if a.confirm == 0 && !a.dryRun {
		if err := tellUnconfirmed(c, cl, applied.Changes); err != nil {
			return err
		}
	}
	if !a.wait {
		return nil
	}
	return a.await(c, cl, docs)
}

// unpruned are kinds whose objects files alone do not make.
var unpruned = []onpath.Kind{onpath.KindNode, onpath.KindTenant, onpath.KindCloudlet, onpath.KindReservation, onpath.KindPriceList,
	onpath.KindInstance, onpath.KindEvent}

// surplus are the objects that -l chooses and no file has, those first that refer to
// others.
func (a *applyFlags) surplus(ctx context.Context, cl *client.Client) ([]onpath.Key, error) {
	there, tenants := map[onpath.Key]bool{}, map[string]bool{onpath.DefaultTenant: len(a.all) == 0}
	for _, d := range a.all {
		k := onpath.KeyOf(d.Object)
		there[k], tenants[k.Tenant] = true, true
	}
	var keys []onpath.Key
	for _, kind := range slices.Backward(onpath.Kinds()) {
		if slices.Contains(unpruned, kind) {
			continue
		}
		list, _, err := cl.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			if k := onpath.KeyOf(o); !there[k] && tenants[k.Tenant] && a.sel.Matches(o.Meta().Labels) {
				keys = append(keys, k)
			}
		}
	}
	return keys, nil
}

// warnOfCut names files that may have been read while they were written.
func warnOfCut(w io.Writer, docs []*manifest.Document) {
	for _, d := range docs {
		if d.Cut != "" {
			fmt.Fprintf(w, "onpath: warning: %s: the file ends in this value, without the end of a line; if it was still being "+
				"written, apply it again (else end the file with a line break)\n", d.Cut)
		}
	}
}

// printApplied says what became of each object.
func (g *global) printApplied(c *cobra.Command, applied *wire.Applied) error {
	return g.print(c, applied, func(w io.Writer) error {
		dry := ""
		if applied.Preview != nil {
			dry = " (dry run)"
		}
		for _, ch := range applied.Changes {
			fmt.Fprintf(w, "%s %s%s\n", ch.Key(), render.Past[ch.Action], dry)
			if ch.Quote != nil && ch.Action != wire.Unchanged {
				render.Quote(w, ch.Quote)
			}
			if applied.Preview == nil || ch.Action != wire.Updated {
				continue
			}
			for _, d := range ch.Diff {
				fmt.Fprintf(w, "  %s\n", render.Change(d, 100))
			}
		}
		if applied.Preview != nil {
			fmt.Fprintln(w)
			return render.Preview(w, applied.Preview)
		}
		render.Notes(w, applied.Notes)
		if p := applied.Confirm; p != nil {
			fmt.Fprintf(w, "undone at %s unless confirmed: onpath confirm %s\n", p.Deadline.Local().Format(time.TimeOnly), p.ID)
		}
		return nil
	})
}

// await waits until everything applied is as it should be, and says on the way
// what is still missing.
func (a *applyFlags) await(c *cobra.Command, cl *client.Client, docs []*manifest.Document) error {
	ctx, cancel := context.WithTimeout(c.Context(), a.timeout)
	defer cancel()
	p := newProgress(c.ErrOrStderr())
	defer p.done()
	began := time.Now()
	keys, functions, err := waited(ctx, cl, docs)
	if err != nil {
		return err
	}
	missing, flaws, unused := map[onpath.Key]string{}, map[onpath.Key][]string{}, map[onpath.Key]bool{}
	for _, k := range keys {
		missing[k] = "is planned"
	}
	w := await.Wait{Functions: functions, Ends: began.Add(a.timeout)}
	again := len(keys) > 1 // what was in place first may be so no more
	for {
		var lines []string
		var vain onpath.Errors
		for _, k := range keys {
			if _, ok := missing[k]; !ok {
				continue
			}
			o, err := cl.Get(ctx, k)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if err != nil {
				break
			}
			s := w.Look(o, time.Now())
			if s.Done {
				delete(missing, k)
				flaws[k] = flawsOf(o)
				delete(unused, k)
				if takenWholly(o) {
					unused[k] = true
				}
				continue
			}
			missing[k] = s.Text
			if s.Vain != nil {
				vain = append(vain, inVain(k, s))
			}
			lines = append(lines, k.String()+": "+s.Text)
		}
		if len(vain) > 0 {
			return incomplete{vain}
		}
		if len(missing) == 0 && again {
			again = false
			for _, k := range keys {
				missing[k] = "was in place, and is looked at again"
			}
			continue
		}
		if len(missing) == 0 {
			p.done()
			for _, k := range keys {
				for _, text := range flaws[k] {
					fmt.Fprintf(c.ErrOrStderr(), "warning: %s: %s\n", k, text)
				}
			}
			for _, k := range keys {
				if unused[k] {
					fmt.Fprintf(c.ErrOrStderr(), "warning: nothing passes %s: other chains take all that it selects\n", k)
				}
			}
			return a.complete(c.OutOrStdout(), time.Since(began))
		}
		if len(lines) > 0 {
			p.show("%s", strings.Join(lines, " · "))
		}
		select {
		case <-ctx.Done():
			return stillMissing(c.Context(), keys, missing, a.timeout)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// flawsOf is what conditions say of a chain that is in place, and not wholly.
func flawsOf(o onpath.Object) (texts []string) {
	if c, ok := o.(*onpath.Chain); ok && !c.Spec.Disabled {
		for _, x := range c.Status.Conditions {
			if x.Status == onpath.False && x.Message != "" {
				texts = append(texts, x.Message)
			}
		}
	}
	return texts
}

// takenWholly reports whether other chains take all traffic of a chain.
func takenWholly(o onpath.Object) bool {
	c, ok := o.(*onpath.Chain)
	return ok && slices.ContainsFunc(c.Status.Conditions, func(x onpath.Condition) bool {
		return x.Status == onpath.False && (x.Reason == "TakenByOwn" || x.Reason == "AllTakenByOthers")
	})
}

// complete says that there is nothing left to wait for. JSON and YAML end before.
func (a *applyFlags) complete(w io.Writer, after time.Duration) error {
	if a.output != outTable {
		return nil
	}
	_, err := fmt.Fprintf(w, "all of it is in place, after %.1f s\n", after.Seconds())
	return err
}

// waited are the objects to wait for: those applied, and the chains and
// deployments that have instances of an applied function. With them come the
// generations of those functions.
func waited(ctx context.Context, cl *client.Client, docs []*manifest.Document) (keys []onpath.Key,
	functions map[onpath.Key]int64, err error) {
	functions = map[onpath.Key]int64{}
	for _, d := range docs {
		k := onpath.KeyOf(d.Object)
		keys = append(keys, k)
		if k.Kind != onpath.KindFunction {
			continue
		}
		o, err := cl.Get(ctx, k)
		if err != nil {
			return nil, nil, err
		}
		functions[k] = o.Meta().Generation
	}
	if len(functions) == 0 {
		return keys, functions, nil
	}
	for _, kind := range []onpath.Kind{onpath.KindDeployment, onpath.KindChain} {
		list, _, err := cl.List(ctx, kind, "")
		if err != nil {
			return nil, nil, err
		}
		for _, o := range list {
			if d, ok := o.(*onpath.Deployment); ok && d.Status.Chain != "" {
				continue // its chain stands for it
			}
			if k := onpath.KeyOf(o); await.Uses(o, functions) && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys, functions, nil
}

// inVain says that something stays as it is until somebody acts.
func inVain(k onpath.Key, s await.Standing) *onpath.Error {
	message := "waiting for it is in vain: " + s.Text
	if s.Vain.Reason == onpath.ReasonConfigRefused {
		message = "a function refused its configuration: " + s.Text
	}
	return &onpath.Error{Code: onpath.CodeUnavailable, Object: k.String(), Message: message, Remedy: s.Vain.Remedy}
}

func stillMissing(ctx context.Context, keys []onpath.Key, missing map[onpath.Key]string, waited time.Duration) error {
	if ctx.Err() != nil {
		return fmt.Errorf("stopped waiting; what was applied stays: %w", ctx.Err())
	}
	var es onpath.Errors
	for _, k := range keys {
		if text, ok := missing[k]; ok {
			es = append(es, &onpath.Error{Code: onpath.CodeUnavailable, Object: k.String(),
				Message: fmt.Sprintf("not complete after %s: %s", waited, text),
				Remedy:  "it goes on by itself; onpath describe tells more"})
		}
	}
	return incomplete{es}
}
