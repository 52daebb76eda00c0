package inline

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/sdk"
)

// function is one whose object has been read: one that comes with onpath, or of others.
type function struct {
	sdk.Function
	object *bpfobject.Object
}

func (f *function) compile(e *onpath.EBPFSpec) (sdk.Write, error) {
	for name := range e.Files {
		if _, both := e.Config[name]; both {
			return nil, sdk.About(name, onpath.Errorf(onpath.CodeInvalid, "is given both as a value and as a file"))
		}
	}
	return f.Compile(told(e))
}

// lists are the names of the lists that the function is told.
func (f *function) lists(e *onpath.EBPFSpec) (named []string) {
	config := told(e)
	for _, name := range slices.Sorted(maps.Keys(f.Lists)) {
		if _, ok := config[name]; ok {
			named = append(named, name)
		}
	}
	return named
}

// empty are the tables of all lists but the named ones.
func (f *function) empty(named []string) (tables []string) {
	for name, table := range f.Lists {
		if !slices.Contains(named, name) {
			tables = append(tables, table)
		}
	}
	return tables
}

// memory is what the tables take when full, with the named lists.
func (f *function) memory(named []string) onpath.Size {
	return f.object.Memory(cpus(), f.empty(named)...)
}

// checkMemory refuses less memory than the tables take; 0 is the default.
func (f *function) checkMemory(e *onpath.EBPFSpec, limit onpath.Size) error {
	if limit == 0 {
		limit = onpath.DefaultMemory
	}
	named := f.lists(e)
	err := f.object.CheckMemory(limit, cpus(), f.empty(named)...)
	var refused *onpath.Error
	if len(named) > 0 && errors.As(err, &refused) {
		list := strings.Join(named, ", ")
		refused.Message += fmt.Sprintf("; without %s they take %s", list, f.memory(nil))
		refused.Remedy = "write more in resources.memory, or leave out " + list
	}
	return err
}

// told is all that a function is told, files included.
func told(e *onpath.EBPFSpec) sdk.Config {
	config := sdk.Config{}
	maps.Copy(config, e.Config)
	for name, file := range e.Files {
		config[name] = file.Content
	}
	return config
}

// plain is for functions of others: their struct onpath_config.
func plain(o *bpfobject.Object) func(sdk.Config) (sdk.Write, error) {
	return func(config sdk.Config) (sdk.Write, error) {
		if _, err := o.Values(config); err != nil {
			return nil, err
		}
		return func(tables sdk.Tables) error { return o.Configure(tables, config) }, nil
	}
}
