package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestRedactErrors: why a change is impossible names other tenants' objects to operators only.
func TestRedactErrors(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"acme", "bob"} {
		o, _ := onpath.New(onpath.KindTenant)
		o.Meta().Name = name
		if _, err := w.operator.Put(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	mine := hosts("bob", "mine", "10.0.0.1")
	bob := w.user("bob")
	w.controller.finds = onpath.Errors{
		{Code: onpath.CodeInvalid, Object: "chain bob/thief", Field: "spec.priority", Message: "another's", Cause: errors.New("chain acme/web to 10.9.0.2")},
		{Code: onpath.CodeInvalid, Object: "chain acme/web", Field: "spec.priority", Message: "selects 10.9.0.2"},
		{Code: onpath.CodeInvalid, Object: "chain acme/mail", Field: "spec.priority", Message: "selects 10.9.0.3"},
	}
	_, err := w.operator.Put(t.Context(), mine)
	for _, say := range []string{"chain bob/thief: spec.priority: another's (chain acme/web to 10.9.0.2)", "chain acme/web: spec.priority: selects 10.9.0.2", "chain acme/mail"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("the operator does not read %q: %v", say, err)
		}
	}
	_, err = bob.Put(t.Context(), mine)
	var list onpath.Errors
	if !errors.As(err, &list) || len(list) != 2 || list[0].Message != "another's" || list[1].Object != "hosts bob/mine" ||
		strings.Contains(err.Error(), "acme") || strings.Contains(err.Error(), "10.9") {
		t.Errorf("bob reads %v", err)
	}
}
