package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/engine/wasm"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/funcbuild"
)

func newFunction(g *global) *cobra.Command {
	return group("function", "Build, test and check your own functions before use", groupAround,
		newFunctionBuild(g), newFunctionTest(g), newFunctionCheck(g))
}

// checked is what is known of an object file.
type checked struct {
	File    string `json:"file"`
	SHA256  string `json:"sha256"`
	License string `json:"license"`
	Needs   uint32 `json:"needs"` // bytes of a packet that it is shown
	// Redirects: it may send packets to later elements.
	Redirects bool              `json:"redirects,omitempty"`
	Memory    onpath.Size       `json:"memory"` // of its tables, on a machine like this
	Tables    map[string]string `json:"tables"`
	Config    []string          `json:"config,omitempty"`
	Counters  []string          `json:"counters,omitempty"`
	// Verified is the number of instructions that this kernel's verifier looked
	// at; 0: it was not asked.
	Verified int    `json:"verified,omitempty"`
	Log      string `json:"log,omitempty"`
}

func newFunctionCheck(g *global) *cobra.Command {
	verbose := false
	c := &cobra.Command{
		Use:   "check FILE.o|FILE.wasm",
		Short: "Check an object or a module as servers and nodes do",
		Long: `Check a module of a wasm function: what it imports and exports, and whether it is
valid. Or check an object file of an ebpf function as servers and nodes do: what
it calls, its tables, its signature. As root the verifier of this machine's kernel is asked
too. Nothing of it stays in the kernel.`,
		Example: examples("onpath function check count.o", "sudo onpath function check count.o --verbose"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
				return checkBuilt(args[0])
			}
			if code, err := os.ReadFile(args[0]); err == nil && wasm.Is(code) {
				m, err := checkModule(c.Context(), args[0], code)
				if err != nil {
					return err
				}
				return g.print(c, m, m.write)
			}
			r, err := checkObject(args[0], verbose)
			if err != nil {
				return err
			}
			return g.print(c, r, r.write)
		},
	}
	c.Flags().BoolVar(&verbose, "verbose", false, "show what the verifier says")
	return c
}

// checkBuilt says which files to check of a folder.
func checkBuilt(dir string) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s is a folder; a compiled file is checked", dir)
	e.Remedy = "onpath function build " + dir + " makes one"
	source, _, err := funcbuild.Source(dir)
	if err != nil {
		return e
	}
	for _, t := range []funcbuild.Target{funcbuild.ToWasm, funcbuild.ToEBPF} {
		file := strings.TrimSuffix(strings.TrimSuffix(source, ".c"), ".bpf") + t.Suffix()
		if _, err := os.Stat(file); err == nil {
			e.Remedy = "onpath function check " + file
			break
		}
	}
	return e
}

func checkObject(file string, verbose bool) (*checked, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, noFile(file, err)
	}
	if info.Size() > onpath.MaxObjectBytes {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s has %d bytes; an object file has at most %d", file,
			info.Size(), onpath.MaxObjectBytes)
	}
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, noFile(file, err)
	}
	o, err := bpfobject.Parse(code)
	if err != nil {
		return nil, err
	}
	r := &checked{File: file, SHA256: o.SHA256, License: o.License, Needs: o.Needs, Redirects: o.Redirects,
		Memory: o.Memory(runtime.NumCPU()), Tables: map[string]string{}}
	for name, m := range o.Tables {
		r.Tables[name] = fmt.Sprintf("%s, %d entries of %d+%d bytes", m.Type, m.MaxEntries, m.KeySize, m.ValueSize)
	}
	if o.Config != nil {
		for _, m := range o.Config.Members {
			r.Config = append(r.Config, m.Name)
		}
	}
	if o.Counters != nil {
		for _, m := range o.Counters.Members {
			r.Counters = append(r.Counters, m.Name)
		}
	}
	if os.Getuid() != 0 {
		return r, nil
	}
	return r, r.verify(o, verbose)
}

// verify asks this machine's kernel.
func (r *checked) verify(o *bpfobject.Object, verbose bool) error {
	dir := filepath.Join(bpfobject.PinPath, fmt.Sprintf("check-%d", os.Getpid()))
	defer os.RemoveAll(dir)
	tables, err := o.OpenTables(dir)
	if err != nil {
		return err
	}
	defer bpfobject.CloseTables(tables)
	if r.Verified, err = o.Verify(tables); err != nil {
		return err
	}
	if verbose {
		t, err := o.Load(tables)
		if err != nil {
			return err
		}
		r.Log = t.Log
		t.Close()
	}
	return nil
}

func (r *checked) write(w io.Writer) error {
	t := table.New("", "")
	t.Row("file", r.File)
	t.Row("sha256", r.SHA256)
	t.Row("licence", r.License)
	t.Row("shown", fmt.Sprintf("%d bytes of each packet", r.Needs))
	if r.Redirects {
		t.Row("redirects", "to later elements of its chain")
	}
	t.Row("memory", fmt.Sprintf("%s for its tables on a machine like this", r.Memory))
	names := make([]string, 0, len(r.Tables))
	for name := range r.Tables {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Row("table "+name, r.Tables[name])
	}
	for _, name := range r.Config {
		t.Row("config", name)
	}
	for _, name := range r.Counters {
		t.Row("counter", name)
	}
	verdict := "accepted; run it as root to ask the kernel's verifier too"
	if r.Verified > 0 {
		verdict = fmt.Sprintf("accepted; the verifier looked at %d instructions of at most %d", r.Verified, bpfobject.MaxVerified)
	}
	t.Row("verdict", verdict)
	if err := t.WriteRows(w); err != nil {
		return err
	}
	if r.Log != "" {
		_, err := fmt.Fprintln(w, r.Log)
		return err
	}
	return nil
}
