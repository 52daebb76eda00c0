package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/wasm"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/funcbuild"
)

// checkedModule is what is known of a module.
type checkedModule struct {
	File string `json:"file"`
	onpath.ModuleFacts
}

func checkModule(ctx context.Context, file string, code []byte) (*checkedModule, error) {
	m, err := engine.Check(ctx, code)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s: %w", file, err)
	}
	if len(code) > onpath.MaxModuleBytes {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s has %d bytes; a module has at most %d", file, len(code), onpath.MaxModuleBytes)
	}
	return &checkedModule{file, onpath.ModuleFacts{SHA256: m.SHA256, Bytes: len(code),
		Memory: onpath.Size(m.MinPages) * wasm.PageSize, Blocks: m.Blocks(), Exports: m.Exports}}, nil
}

func (m *checkedModule) write(w io.Writer) error {
	t := table.New("", "")
	t.Row("file", m.File)
	t.Row("sha256", m.SHA256)
	t.Row("size", fmt.Sprintf("%d bytes", m.Bytes))
	t.Row("memory", fmt.Sprintf("%s at first", m.Memory))
	for _, b := range m.Blocks {
		t.Row("block", b)
	}
	for _, e := range m.Exports {
		t.Row("exports", e)
	}
	t.Row("verdict", "accepted")
	return t.WriteRows(w)
}

// built is what a source was built to, for one target.
type built struct {
	Target funcbuild.Target `json:"target"`
	File   string           `json:"file,omitempty"`
	Bytes  int              `json:"bytes,omitempty"`
	Why    string           `json:"why,omitempty"` // not
}

func newFunctionBuild(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "build DIR|FILE.c",
		Short: "Compile a function's source to wasm and, where it suits, to ebpf",
		Long: `Compile the C file in a folder for both targets, with clang and lld as the
distribution has them and onpath's own headers: FILE.wasm for a wasm function,
FILE.o for an ebpf one, beside the source. A source that eBPF cannot have builds
to wasm alone, and what the compiler or the check says is told.`,
		Example: examples("onpath function build ./mine", "onpath function build mine.c"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			out, err := buildFunction(c.Context(), args[0])
			if err != nil {
				return err
			}
			return g.print(c, out, func(w io.Writer) error { return writeBuilt(w, out) })
		},
	}
}

// buildFunction fails if the source builds for no target.
func buildFunction(ctx context.Context, dir string) (out []built, err error) {
	source, _, err := funcbuild.Source(dir)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%w", err)
	}
	base := strings.TrimSuffix(strings.TrimSuffix(source, ".c"), ".bpf")
	var errs []error
	for _, t := range []funcbuild.Target{funcbuild.ToWasm, funcbuild.ToEBPF} {
		code, err := funcbuild.Compile(ctx, source, t)
		if errors.Is(err, funcbuild.ErrLacking) {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "%w", err)
		}
		if err == nil && t == funcbuild.ToWasm {
			_, err = engine.Check(ctx, code)
		}
		if err == nil && t == funcbuild.ToEBPF {
			_, err = bpfobject.Parse(code)
		}
		if err != nil {
			out = append(out, built{Target: t, Why: err.Error()})
			errs = append(errs, fmt.Errorf("%s: %w", t, err))
			continue
		}
		file := base + t.Suffix()
		if have, rerr := os.ReadFile(file); rerr != nil || !bytes.Equal(have, code) {
			if err := os.WriteFile(file, code, 0o644); err != nil {
				return nil, err
			}
		}
		out = append(out, built{Target: t, File: filepath.Clean(file), Bytes: len(code)})
	}
	if len(errs) == len(out) {
		errs = funcbuild.Once(errs)
		return nil, onpath.Errorf(onpath.CodeInvalid, "%w", errors.Join(errs...))
	}
	return out, nil
}

func writeBuilt(w io.Writer, out []built) error {
	for _, b := range out {
		if b.Why != "" {
			if _, err := fmt.Fprintf(w, "%-5s does not suit: %s\n", b.Target, b.Why); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintf(w, "%-5s %s, %d bytes\n", b.Target, b.File, b.Bytes); err != nil {
			return err
		}
	}
	return nil
}
