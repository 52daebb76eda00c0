package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/control/translog/tlogtiles"
	"github.com/onpath/onpath/internal/wholefile"
)

// logFlags say which log is read, and where its last checkpoint is kept.
type logFlags struct{ url, key, state string }

func (f *logFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.url, "url", "", "https://HOST:PORT of a server; no credential needed")
	c.Flags().StringVar(&f.key, "key", "", "the log's key (default: what it had first)")
	c.Flags().StringVar(&f.state, "state", "", "file for the last checkpoint (default ~/.config/onpath/log/…)")
}

// watched is a log with what is remembered of it.
type watched struct {
	tlogtiles.Reader
	path string
	kept keptLog
	last tlog.Tree
}

// keptLog is the file of state.
type keptLog struct {
	Key        string `json:"key"`
	Checkpoint string `json:"checkpoint,omitempty"`
}

// open finds the log and what was kept of it.
func (f *logFlags) open(ctx context.Context, g *global) (*watched, error) {
	w := &watched{path: f.state}
	server := f.url
	if f.url != "" {
		fetch := client.PublicLog(f.url)
		w.Fetch = func(path string) ([]byte, error) { return fetch(ctx, path) }
	} else {
		cl, err := g.client()
		if err != nil {
			return nil, err
		}
		server = cl.Server()
		w.Fetch = func(path string) ([]byte, error) { return cl.LogFile(ctx, path) }
	}
	if w.path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "there is no place for the last checkpoint: name one with --state: %w", err)
		}
		w.path = filepath.Join(dir, "onpath", "log", strings.Map(plainRune, server)+".json")
	}
	b, err := os.ReadFile(w.path)
	if err == nil {
		err = json.Unmarshal(b, &w.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s: %w", w.path, err)
	}
	return w, w.know(f.key)
}

func plainRune(r rune) rune {
	if strings.ContainsRune("/:[]", r) {
		return '-'
	}
	return r
}

// know finds the key that signs, and opens the checkpoint that was kept.
func (w *watched) know(key string) error {
	switch {
	case key != "" && w.kept.Key != "" && key != w.kept.Key:
		return onpath.Errorf(onpath.CodeConflict, "%s is of a log with another key", w.path)
	case key != "":
		w.kept.Key = key
	case w.kept.Key == "":
		b, err := w.Fetch("key")
		if err != nil {
			return err
		}
		w.kept.Key = strings.TrimSpace(string(b))
	}
	v, err := note.NewVerifier(w.kept.Key)
	if err != nil {
		return onpath.Errorf(onpath.CodeInvalid, "%q is no key of a log: %w", w.kept.Key, err)
	}
	if w.Verifier = v; w.kept.Checkpoint == "" {
		return nil
	}
	if w.last, err = w.Open([]byte(w.kept.Checkpoint)); err != nil {
		return onpath.Errorf(onpath.CodeInvalid, "%s: %w", w.path, err)
	}
	return nil
}

// next takes up the newest checkpoint, if it continues the one that was kept.
func (w *watched) next() (tlog.Tree, error) {
	t, signed, err := w.Checkpoint()
	if err == nil {
		err = w.Continues(w.last, t)
	}
	if err != nil {
		return t, logError(err)
	}
	w.kept.Checkpoint = string(signed)
	return t, nil
}

// keep saves the checkpoint, once what it adds was seen.
func (w *watched) keep(t tlog.Tree) error {
	w.last = t
	b, err := json.Marshal(&w.kept)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.path), 0o700)
	}
	if err == nil {
		err = wholefile.Write(w.path, b, 0o600)
	}
	return err
}

// logError is a log that does not hold, as an error for people.
func logError(err error) error {
	var known *onpath.Error
	if errors.As(err, &known) {
		return err
	}
	e := onpath.Errorf(onpath.CodeConflict, "%w", err)
	e.Remedy = "keep the state file: its checkpoint is signed, and shows what the operator said before"
	return e
}

func newLogCommand(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "log", Short: "Read the operator's public log: whose traffic is intercepted", GroupID: groupSee,
		Long: `Read the operator's public log. It has every claim of a prefix and every interception
of traffic in clear, and a hash of every other change, command and capture. It only
grows: these commands keep its last signed checkpoint and find a log that does not
continue it.`,
	}
	c.AddCommand(newLogWatch(g), newLogVerify(g))
	return c
}

func newLogVerify(g *global) *cobra.Command {
	f := &logFlags{}
	c := &cobra.Command{
		Use: "verify", Short: "Check that the log holds what was signed, and forgot nothing",
		Example: examples("onpath log verify", "onpath log verify --url https://onpath.example.net:7443"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w, err := f.open(c.Context(), g)
			if err != nil {
				return err
			}
			before := w.last.N
			t, err := w.next()
			if err != nil {
				return err
			}
			if err := w.Root(t); err != nil {
				return logError(err)
			}
			if err := w.keep(t); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d entries, signed by %s; the %d that were seen before are unchanged\n",
				t.N, w.Verifier.Name(), before)
			return err
		},
	}
	f.add(c)
	return c
}

func newLogWatch(g *global) *cobra.Command {
	f := &logFlags{}
	var text string
	var once bool
	c := &cobra.Command{
		Use: "watch --prefix PREFIX", Short: "Show claims and interceptions of a prefix as they come",
		Long: `Show claims and interceptions of a prefix as they come, with what was seen of it
before. It needs no credential, and ends with an error when the log forks.`,
		Example: examples("onpath log watch --prefix 198.51.100.0/24 --url https://onpath.example.net:7443"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var p onpath.Prefix
			if err := p.UnmarshalText([]byte(text)); err != nil {
				return badUsage("--prefix %q: write an address or a prefix", text)
			}
			w, err := f.open(c.Context(), g)
			if err != nil {
				return err
			}
			return w.watch(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), p, once, g.output == "json")
		},
	}
	f.add(c)
	c.Flags().StringVar(&text, "prefix", "", "address or prefix that is yours")
	c.Flags().BoolVar(&once, "once", false, "end once all that is there was shown")
	return c
}

// logEvery is how often the log is asked for more.
const logEvery = time.Second

func (w *watched) watch(ctx context.Context, out, warnings io.Writer, p onpath.Prefix, once, asJSON bool) error {
	from, silent := int64(0), false
	for {
		t, err := w.next()
		if err == nil && t.N > from {
			err = w.Each(t, from, func(i int64, entry []byte) error {
				from = i + 1 // what comes behind it may fail, and is read again then
				e := onpath.LoggedEntry{Index: i}
				if json.Unmarshal(entry, &e.LogEntry) != nil || !e.Overlaps(p) {
					return nil
				}
				if asJSON {
					return json.NewEncoder(out).Encode(&e)
				}
				_, err := fmt.Fprintln(out, logLine(&e))
				return err
			})
		}
		switch {
		case err == nil:
			if err := w.keep(t); err != nil {
				return err
			}
			silent = false
		case onpath.Passing(err) && !once: // it is asked again
			if !silent {
				fmt.Fprintf(warnings, "the log cannot be read now; its entries are shown once it can: %v\n", err)
			}
			silent = true
		default:
			return logError(err)
		}
		if once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logEvery):
		}
	}
}

// logLine is an entry about prefixes for people.
func logLine(e *onpath.LoggedEntry) string {
	var list []string
	for _, p := range e.Prefixes {
		list = append(list, p.String())
	}
	what := map[onpath.LogWhat]string{onpath.LogClaim: "claimed by", onpath.LogBegin: "intercepted by",
		onpath.LogEnd: "no longer intercepted by"}[e.What]
	who := "tenant " + e.Tenant
	if e.Tenant == "" {
		who = "a publisher who is no tenant"
	}
	s := fmt.Sprintf("%s  %s  %s %s", e.Time.Local().Format(time.DateTime), strings.Join(list, ","), what, who)
	if e.What == onpath.LogClaim {
		return printable(s + fmt.Sprintf(" (%s): %s", e.Method, e.State))
	}
	return printable(s + fmt.Sprintf(" (%s) in %s, through %s", e.Method, strings.Join(e.Cloudlets, ","), strings.Join(e.Functions, ", ")))
}

func newAudit(g *global) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "audit", Short: "Show who changed, ran and captured what, the latest last", GroupID: groupSee,
		Long: `Show who changed, ran and captured what, and whom the server did not let in, the latest
last: what stands behind the hashes of the public log, checked against them.`,
		Example: examples("onpath audit", "onpath audit --tenant acme -n 20 -o json"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			list := []onpath.LoggedEntry{}
			err = cl.Audit(c.Context(), g.tenant, limit, func(e onpath.LoggedEntry) error { list = append(list, e); return nil })
			if err != nil {
				return err
			}
			return g.print(c, list, func(w io.Writer) error {
				t := table.New(">ENTRY", "TIME", "WHAT", "BY", "OBJECT", "MESSAGE")
				for i := range list {
					e := &list[i]
					text := e.Message
					if e.Public() {
						text = logLine(e)
					}
					t.Row(fmt.Sprint(e.Index), e.Time.Local().Format(time.DateTime), string(e.What), e.By, e.Object, printable(text))
				}
				return t.Write(w)
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 100, "the latest so many")
	g.tenantFlag(c, "only this tenant's")
	return c
}
