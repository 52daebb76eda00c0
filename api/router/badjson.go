package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/onpath/onpath"
)

// BadJSON says what is wrong with the JSON of something, in words that need no
// knowledge of the program.
func BadJSON(what string, err error) *onpath.Error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	e := onpath.Errorf(onpath.CodeInvalid, "%s", strings.TrimPrefix(err.Error(), "json: "))
	e.Cause = err
	switch {
	case errors.As(err, &typ):
		e.Field = typ.Field
		e.Message = fmt.Sprintf("is %s where %s is wanted", article(typ.Value), wanted(typ.Type))
		if typ.Field == "" && what == "" {
			what = "the object"
		}
	case errors.As(err, &syntax):
		e.Message = fmt.Sprintf("is broken off or no JSON at byte %d", syntax.Offset)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = "is empty, or breaks off"
	default:
		if what != "" {
			e.Message = "has an error: " + e.Message
		}
	}
	if what != "" && e.Field == "" {
		e.Message = what + " " + e.Message
	}
	return e
}

func article(value string) string {
	switch word, _, _ := strings.Cut(value, " "); word {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	case "string":
		return "text"
	default:
		return "a number"
	}
}

// wanted is what fits into a Go value, in words.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object {…}"
	case reflect.Slice, reflect.Array:
		return "a list […]"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return "a number"
	}
}
