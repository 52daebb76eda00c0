package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"

	"github.com/onpath/onpath/engine/wasm"
)

// Check reads a module and sees that it is valid, and whether an engine would have it. It
// runs nothing of it.
func Check(ctx context.Context, code []byte) (*wasm.Module, error) {
	m, err := wasm.Read(code)
	if err != nil {
		return nil, err
	}
	for _, i := range m.Imports {
		if _, ok := functions[i]; !ok {
			return nil, fmt.Errorf("it imports %s of %s; what is offered is %s", i.Name, i.Module, strings.Join(Blocks, ", "))
		}
	}
	if m.MinPages > maxPages {
		return nil, fmt.Errorf("it wants %d KiB of memory; %d is the most", m.MinPages*64, maxPages*64)
	}
	if !slices.Contains(m.Exports, "onpath_describe") {
		return nil, fmt.Errorf("it does not export onpath_describe; include onpath.h")
	}
	metered, err := m.Meter(fuel)
	if err != nil {
		return nil, err
	}
	// The interpreter makes no code of the machine's: this sees only whether it is valid.
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(features).WithMemoryLimitPages(maxPages))
	defer r.Close(ctx)
	if _, err := r.CompileModule(ctx, metered); err != nil {
		return nil, fmt.Errorf("it is not valid: %w", err)
	}
	return m, nil
}
