package onpath_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestWindowOfTenants: a tenant's chain does not have nodes asked more often than eight times
// in five seconds; what is the operator's own may.
func TestWindowOfTenants(t *testing.T) {
	for tenant, refused := range map[string]bool{"acme": true, onpath.DefaultTenant: false, onpath.OperatorTenant: false} {
		o, _ := onpath.New(onpath.KindChain)
		c := o.(*onpath.Chain)
		c.Metadata.Tenant, c.Metadata.Name = tenant, "web"
		c.Spec.Scaling = &onpath.Scaling{Window: onpath.Duration(time.Second)}
		err := c.Validate()
		if got := err != nil && strings.Contains(err.Error(), "spec.scaling.window"); got != refused {
			t.Errorf("a window of a second in tenant %s: %v", tenant, err)
		}
	}
}
