package change

import (
	"context"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

// redactErrors is what is impossible about a change, for whoever asks: operators see who
// else is concerned, a tenant's users learn nothing of other tenants' objects. Such an
// error is then about k, which they change.
func redactErrors(ctx context.Context, err error, k onpath.Key) error {
	if err == nil {
		return nil
	}
	who := rights.WhoIs(ctx)
	var out onpath.Errors
	hidden := false
	for _, e := range router.ErrorsOf(err) {
		e := *e
		switch {
		case who.Role == auth.RoleOperator:
			if e.Cause != nil && !strings.Contains(e.Message, e.Cause.Error()) {
				e.Message += " (" + e.Cause.Error() + ")"
			}
		case who.Tenanted() && foreign(e.Object, who.Tenant):
			if hidden {
				continue
			}
			hidden = true
			e = onpath.Error{Code: e.Code, Object: k.String(), Message: "it would make what another tenant has impossible",
				Remedy: "ask the operator whose traffic it is", Cause: err}
		}
		out = append(out, &e)
	}
	return out
}

// foreign reports whether an error's object is one of another tenant.
func foreign(object, tenant string) bool {
	_, name, _ := strings.Cut(object, " ")
	owner, _, tenanted := strings.Cut(name, "/")
	return tenanted && owner != tenant
}
