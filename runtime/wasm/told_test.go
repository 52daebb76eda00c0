package wasm

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/onpath/onpath"
)

// TestTold: whatever an engine is told of a function reaches one that runs when it changes:
// by Reconfigure, which is called when Told changes, or by Resize.
func TestTold(t *testing.T) {
	s := onpath.FunctionSpec{
		Wasm: &onpath.WasmSpec{
			Modules: []onpath.WasmModule{{Name: "m", Code: onpath.ObjectCode("code"), Select: []onpath.Selector{{}}, Config: onpath.Env{"a": "b"}}},
			Ports:   []onpath.ServedPort{{}},
		},
	}
	config := func() string {
		b, err := json.Marshal(configOf(&s))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	was, told, resources, fixed := config(), s.Told(), s.Resources, s.Fixed()
	reach := 0
	change(reflect.ValueOf(&s).Elem(), "spec", func(at string) {
		if config() == was {
			return
		}
		reach++
		if s.Told() == told && s.Resources == resources && reflect.DeepEqual(s.Fixed(), fixed) {
			t.Errorf("a change of %s does not reach a running engine", at)
		}
	})
	if reach < 10 {
		t.Errorf("only %d fields reach engines", reach)
	}
	s.Packets = onpath.PacketsKeep
	if s.Told() != told {
		t.Error("the default, written, is told as a change")
	}
}

// change changes each field in turn, has it looked at, and changes it back.
func change(v reflect.Value, at string, look func(at string)) {
	try := func(to reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		v.Set(to)
		look(at)
		v.Set(old)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				change(v.Field(i), at+"."+f.Name, look)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			change(v.Elem(), at, look)
		}
	case reflect.Slice:
		if v.Len() > 0 {
			change(v.Index(0), at+"[0]", look)
		}
		try(reflect.Append(v.Slice3(0, v.Len(), v.Len()), reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		if !v.IsNil() {
			try(reflect.MakeMap(v.Type()))
		}
	case reflect.String:
		try(reflect.ValueOf("changed").Convert(v.Type()))
	case reflect.Bool:
		try(reflect.ValueOf(!v.Bool()).Convert(v.Type()))
	default:
		if v.CanInt() || v.CanUint() || v.CanFloat() {
			try(reflect.ValueOf(7).Convert(v.Type()))
		}
	}
}
