package inline

import (
	"maps"

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
