package router

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/onpath/onpath"
)

// DecodeObject reads one object strictly: an unknown field is an error.
func DecodeObject(body []byte) (onpath.Object, error) {
	var t onpath.TypeMeta
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, BadJSON("the object", err)
	}
	if t.APIVersion != onpath.APIVersion {
		e := onpath.Errorf(onpath.CodeInvalid, "apiVersion is %q", t.APIVersion)
		e.Field, e.Remedy = "apiVersion", "write "+onpath.APIVersion
		return nil, e
	}
	o, err := onpath.New(t.Kind)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		e := BadJSON("", err)
		e.Object = onpath.KeyOf(o).String()
		return nil, e
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, onpath.Errorf(onpath.CodeInvalid, "there is something behind the object")
	}
	return o, nil
}
