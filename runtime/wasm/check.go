package wasm

import (
	"context"
	"fmt"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/wasm"
)

// Checker implements onpath.FunctionChecker for functions of kind wasm.
type Checker struct{}

// Inspect implements onpath.FunctionChecker.
func (Checker) Inspect(s *onpath.FunctionSpec) (onpath.FunctionStatus, error) {
	var out onpath.FunctionStatus
	for i := range s.Wasm.Modules {
		m := &s.Wasm.Modules[i]
		field := fmt.Sprintf("modules[%d].module", i)
		read, err := engine.Check(context.Background(), m.Code)
		if err != nil {
			return out, &onpath.Error{Code: onpath.CodeInvalid, Field: field, Message: fmt.Sprintf("module %s: %v", m.Name, err)}
		}
		out.Modules = append(out.Modules, onpath.ModuleFacts{
			Name: m.Name, SHA256: read.SHA256, Bytes: len(m.Code), Memory: onpath.Size(read.MinPages) * wasm.PageSize,
			Blocks: read.Blocks(), Exports: read.Exports,
		})
	}
	return out, nil
}

// CheckConfig implements onpath.FunctionChecker: what a module can be told stands in its
// memory, which only an engine reads.
func (Checker) CheckConfig(*onpath.FunctionSpec, bool) error { return nil }
