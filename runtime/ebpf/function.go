package ebpf

import (
	"maps"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/inline"
)

// function is an object with who knows how to fill its tables.
type function struct {
	name     string
	code     []byte
	object   *inline.Object
	compiler compiler
}

// A compiler turns what a function is told into what writes it to the tables. It
// finds every fault before anything is written.
type compiler func(o *inline.Object, config map[string]string) (write, error)

// write puts a configuration in force. Packets see the old or the new one.
type write func(tables map[string]*ebpf.Map) error

func (f *function) compile(e *onpath.EBPFSpec) (write, error) {
	for name := range e.Files {
		if _, both := e.Config[name]; both {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%s is given both as a value and as a file", name)
		}
	}
	return f.compiler(f.object, f.values(e))
}

// values are what the function is told, files included.
func (f *function) values(e *onpath.EBPFSpec) map[string]string {
	config := map[string]string{}
	maps.Copy(config, e.Config)
	for name, file := range e.Files {
		config[name] = file.Content
	}
	return config
}

// plain is for functions of others: their struct onpath_config.
func plain(o *inline.Object, config map[string]string) (write, error) {
	if _, err := o.Values(config); err != nil {
		return nil, err
	}
	return func(tables map[string]*ebpf.Map) error { return o.Configure(tables, config) }, nil
}
