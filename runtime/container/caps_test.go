package container

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"

	"github.com/onpath/onpath"
)

// TestCapabilitiesAsWritten: what a Function may ask for is what an instance is given, and
// nothing else: the API and the driver have one list.
func TestCapabilitiesAsWritten(t *testing.T) {
	for _, name := range cap.Known() {
		name = strings.TrimPrefix(name, "CAP_")
		o, err := onpath.New(onpath.KindFunction)
		if err != nil {
			t.Fatal(err)
		}
		f := o.(*onpath.Function)
		f.Metadata.Name, f.Metadata.Tenant = "fw", onpath.DefaultTenant
		f.Spec.Container = &onpath.ContainerSpec{Image: onpath.HostImage, Command: []string{"true"}, Caps: []string{name}}
		asked := f.Validate() == nil
		_, err = capabilities([]string{name})
		if given := onpath.CodeOf(err) != onpath.CodeForbidden; asked != given {
			t.Errorf("%s: a Function may ask for it: %v (%v); it is given: %v", name, asked, f.Validate(), given)
		}
	}
}
