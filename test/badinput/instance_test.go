package badinput_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/store/mem"
)

// TestInstanceNames: every command on an instance finds it by the same names, and
// says the same of those that mean none or more than one.
func TestInstanceNames(t *testing.T) {
	bin := testprogram.Path(t)
	store := mem.New(mem.Options{})
	furnish(t, store)
	var changes []onpath.Change
	for name, deployment := range map[string]string{"web-fw-aaaaa": "web-fw", "web-fw-drain": "web-fw", "web-ids-bbbbb": "web-ids", "web-ids-ccccc": "web-ids"} {
		i := &onpath.Instance{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindInstance},
			Metadata: onpath.Metadata{Name: name, Tenant: "acme"}, Spec: onpath.InstanceSpec{Deployment: deployment, Node: "gw1"}}
		if name == "web-fw-drain" { // is replaced: the other one is meant
			i.Spec.Draining = time.Now().UTC()
		}
		changes = append(changes, onpath.Change{Key: onpath.KeyOf(i), Object: i})
	}
	if _, err := store.Write(t.Context(), onpath.Batch{Changes: changes}); err != nil {
		t.Fatal(err)
	}
	server := "unix://" + serveStill(t, store)
	for _, c := range []struct {
		args []string
		// What it says of the one instance of a deployment: it is found, but its
		// node is not connected.
		code int
		want string
	}{
		{[]string{"describe", "instance", "NAME"}, 0, "instance acme/web-fw-aaaaa, "},
		{[]string{"get", "instance", "NAME", "-o", "name"}, 0, "acme/web-fw-aaaaa"},
		{[]string{"logs", "NAME"}, 4, "node gw1 is not connected"},
		{[]string{"exec", "NAME", "true"}, 4, "node gw1 is not connected"},
		{[]string{"capture", "NAME", "-w", os.DevNull}, 4, "node gw1 is not connected"},
		{[]string{"fault", "kill-instance", "NAME", "--yes", "--watch", "0"}, 4, "node gw1 is not connected"},
		{[]string{"fault", "stall-instance", "NAME", "--yes", "--watch", "0"}, 4, "node gw1 is not connected"},
		{[]string{"fault", "drop", "NAME", "--yes", "--watch", "0"}, 4, "node gw1 is not connected"},
		{[]string{"fault", "delay", "NAME", "--yes", "--watch", "0"}, 4, "node gw1 is not connected"},
	} {
		for _, n := range []struct {
			name, want string
			code       int
		}{
			{"acme/web-fw", c.want, c.code},
			{"acme/web-fw-aaaaa", c.want, c.code},
			{"acme/web-ids", "deployment web-ids has 2 instances: web-ids-bbbbb, web-ids-ccccc; say which", 2},
			{"acme/web-sid-ccccc", `no deployment with an instance called "web-sid-ccccc"; did you mean web-ids-ccccc?`, 3},
			{"acme/mail", `called "mail"; there are web-fw-aaaaa, web-fw-drain, web-ids-bbbbb, web-ids-ccccc`, 3},
			{"mail", `tenant default has no instance`, 3},
		} {
			args := strings.Fields(strings.Replace(strings.Join(c.args, " "), "NAME", n.name, 1))
			code, out, message := run(t, bin, append([]string{"--server", server}, args...)...)
			if code != n.code || !strings.Contains(out+message, n.want) || strings.Contains(message, "\n") {
				t.Errorf("%v: exit code %d, %s %s\nwant %d, %s", args, code, out, message, n.code, n.want)
			}
		}
	}
}
