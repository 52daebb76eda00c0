package e2e

import (
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const serviceYAML = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: site}
spec:
  state: terminates
  container:
    image: host
    command:
    - python3
    - -c
    - |
      import socket
      s = socket.create_server(("", 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
      while True:
          c, _ = s.accept()
          c.recv(4096)
          c.sendall(b"HTTP/1.0 200 OK\r\n\r\nat your service\n")
          c.close()
  health: {tcp: 8080, every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: site}
spec: {function: site, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Service
metadata: {name: site}
spec:
  deployment: site
  name: site.example
  select: [{protocol: tcp, destinationPorts: [8080]}]
`

// TestServiceContainers: containers that other machines run hold the addresses of a service,
// of both IP versions, and answer there; what is not selected is dropped.
func TestServiceContainers(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs the program python3, for functions in user space")
	}
	apply(ctx, t, serviceYAML)
	var s onpath.Service
	err := testbed.WaitFor(ctx, "the service answers", 60*time.Second, func() (bool, error) {
		err := testbed.Get(ctx, &s, "service", "site")
		return len(s.Status.Cloudlets) == 1 && s.Status.Cloudlets[0].Serves && s.Status.Cloudlets[0].Ready == 2, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Status.Cloudlets[0].Addresses); n != 2 {
		t.Fatalf("it has %d addresses", n)
	}
	for _, a := range s.Status.Cloudlets[0].Addresses {
		for range 6 { // both instances have some of them
			out, err := testbed.Exec(ctx, "client", testbed.Bin(), "demo", "stats", "http://"+net.JoinHostPort(a.String(), "8080")+"/")
			if err != nil || !strings.Contains(string(out), "at your service") {
				t.Errorf("%s: %v\n%s", a, err, out)
			}
		}
		out, err := testbed.Exec(ctx, "client", testbed.Bin(), "demo", "probe", "--timeout", "1s", net.JoinHostPort(a.String(), "8081"))
		if err == nil && strings.Contains(string(out), `"open":true`) {
			t.Errorf("a port that is not selected answers at %s: %s", a, out)
		}
	}
	verified, err := testbed.Onpath(ctx, "verify", "-o", "json")
	if err != nil || !strings.Contains(string(verified), "site-pop") || strings.Contains(string(verified), `"refuted"`) {
		t.Errorf("%v\n%s", err, verified)
	}
}
