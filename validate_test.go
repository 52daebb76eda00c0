package onpath

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// chainHead begins the smallest valid chain; the cases below break one thing each.
const chainHead = `"apiVersion":"onpath/v1alpha1","kind":"Chain","metadata":{"name":"web"}`

func TestValidate(t *testing.T) {
	type m = map[string]string
	const (
		tenant   = `{"kind":"Tenant","metadata":{"name":"acme"},"spec":{`
		cloudlet = `{"kind":"Cloudlet","metadata":{"name":"fra1"},"spec":{`
		node     = `{"kind":"Node","metadata":{"name":"n1"},"spec":{"cloudlet":"fra1","underlay":{"address":"10.0.0.1"},`
		hosts    = `{"kind":"Hosts","metadata":{"name":"h"},"spec":{`
		function = `{"kind":"Function","metadata":{"name":"f"},"spec":{`
		box      = function + `"container":{"command":["sleep"],"image":"host",`
		deploy   = `{"kind":"Deployment","metadata":{"name":"d"},"spec":{"function":"f",`
		ends     = `{` + chainHead + `,"spec":{"from":"any","to":{"hosts":"h"},`
		thru     = `"through":[{"function":"f"}]`
		elem     = ends + `"through":[{"function":"f",`
		sel      = ends + thru + `,"select":[{`
	)
	for _, c := range []struct{ in, field, message string }{
		// Names and metadata.
		{`{"kind":"Tenant","metadata":{"name":""}}`, "metadata.name", "missing"},
		{`{"kind":"Tenant","metadata":{"name":"Acme"}}`, "metadata.name", "write acme"},
		{`{"kind":"Tenant","metadata":{"name":"-a"}}`, "metadata.name", "not a name"},
		{`{"kind":"Tenant","metadata":{"name":"` + strings.Repeat("a", 64) + `"}}`, "metadata.name", "1 to 63"},
		{`{"kind":"Tenant","metadata":{"name":"a","tenant":"b"}}`, "metadata.tenant", "belongs to the operator"},
		{`{"kind":"Hosts","metadata":{"name":"h","tenant":"a.b"},"spec":{"node":"n"}}`, "metadata.tenant", "not a name"},
		{`{"kind":"Tenant","apiVersion":"onpath/v9","metadata":{"name":"a"}}`, "apiVersion", "write onpath/v1alpha1"},
		{`{"kind":"Tenant","metadata":{"name":"a","labels":{"a b":"c"}}}`, "metadata.labels[a b]", "name of a label"},
		{`{"kind":"Tenant","metadata":{"name":"a","labels":{"a":"c!"}}}`, "metadata.labels[a]", "value of a label"},
		{`{"kind":"Deployment","metadata":{"name":"` + strings.Repeat("a", 58) + `"},"spec":{"function":"f"}}`, "metadata.name", "58 characters"},
		// Operator's kinds.
		{tenant + `"maxFlows":-1}}`, "spec.maxFlows", "out of range"},
		{tenant + `"maxNewFlows":-2}}`, "spec.maxNewFlows", "out of range"},
		{tenant + `"maxNewFlows":10000001}}`, "spec.maxNewFlows", "out of range"},
		{tenant + `"addresses":["10.0.0.0/8","224.0.0.0/4"]}}`, "spec.addresses[1]", "multicast"},
		{`{"kind":"Tenant","metadata":{"name":"operator"},"spec":{"addresses":["10.0.0.0/8"]}}`, "spec.addresses", "any traffic"},
		{cloudlet + `"operatorShare":101}}`, "spec.operatorShare", "0 to 100"},
		{cloudlet + `"location":{"latitude":91}}}`, "spec.location.latitude", "out of range"},
		{cloudlet + `"location":{"longitude":-181}}}`, "spec.location.longitude", "out of range"},
		{`{"kind":"Node","metadata":{"name":"n"},"spec":{"underlay":{"address":"10.0.0.1"}}}`, "spec.cloudlet", "missing"},
		{`{"kind":"Node","metadata":{"name":"n"},"spec":{"cloudlet":"c","underlay":{}}}`, "spec.underlay.address", "missing"},
		{`{"kind":"Node","metadata":{"name":"n"},"spec":{"cloudlet":"c","underlay":{"address":"0.0.0.0"}}}`, "spec.underlay.address", "one machine"},
		{`{"kind":"Node","metadata":{"name":"n"},"spec":{"cloudlet":"c","underlay":{"address":"10.0.0.1","mtu":1279}}}`, "spec.underlay.mtu", "1280 to 65535"},
		{`{"kind":"Node","metadata":{"name":"n","labels":{"name":"m"}},"spec":{"cloudlet":"c","underlay":{"address":"10.0.0.1"}}}`, "metadata.labels[name]", "node's name"},
		{node + `"uplinks":[{"name":"a","device":"eth0","attach":"rooter"}]}}`, "spec.uplinks[0].attach", "did you mean router?"},
		{node + `"uplinks":[{"name":"a","device":"eth0"}]}}`, "spec.uplinks[0].attach", "missing"},
		{node + `"uplinks":[{"name":"a","device":"a/b","attach":"tap"}]}}`, "spec.uplinks[0].device", "network device"},
		{node + `"uplinks":[{"name":"a","device":"eth0","attach":"tap"},{"name":"a","device":"eth1","attach":"tap"}]}}`, "spec.uplinks[1].name", "another uplink"},
		{node + `"uplinks":[{"name":"a","device":"eth0","attach":"tap"},{"name":"b","device":"eth0","attach":"tap"}]}}`, "spec.uplinks[1].device", "already"},
		{node + `"uplinks":[{"name":"a","device":"eth0","attach":"bridge","side":"core"}]}}`, "spec.uplinks[0].attach", "two devices"},
		{node + `"capacity":{"memory":"1Mi"}}}`, "spec.capacity.memory", "write 4Mi to 64Ti"},
		// Hosts.
		{hosts + `}}`, "spec.addresses", "missing"},
		{hosts + `"addresses":["10.0.0.1"],"node":"n"}}`, "spec", "both addresses and node"},
		{hosts + `"addresses":["224.0.0.1"]}}`, "spec.addresses[0]", "multicast"},
		{hosts + `"addresses":["10.0.0.1","::1"]}}`, "spec.addresses[1]", "loopback"},
		{hosts + `"addresses":["fe80::1"]}}`, "spec.addresses[0]", "link-local"},
		{hosts + `"addresses":["0.0.0.0"]}}`, "spec.addresses[0]", "no host's address"},
		{hosts + `"addresses":["10.0.0.0/8"],"virtual":["10.0.0.1"]}}`, "spec.virtual[0]", "in addresses too"},
		// Functions.
		{function + `}}`, "spec", "what to run"},
		{function + `"container":{}}}`, "spec.container.image", "missing"},
		{function + `"container":{"image":"squid.tar!"}}}`, "spec.container.image", "not an image"},
		{function + `"container":{"image":"r.example/a/../b:1"}}}`, "spec.container.image", "not an image"},
		{function + `"container":{"image":"r.example//b:1"}}}`, "spec.container.image", "not an image"},
		{function + `"container":{"image":"r.example/a..b:1"}}}`, "spec.container.image", "not an image"},
		{function + `"container":{"image":"UPPER"}}}`, "spec.container.image", "not an image"},
		{box + `"command":[""]}}}`, "spec.container.command[0]", "program"},
		{box + `"env":{"A=B":"c"}}}}`, "spec.container.env[A=B]", "environment variable"},
		{box + `"env":{"A":"c\u0000"}}}}`, "spec.container.env[A]", "not text"},
		{box + `"workingDir":"tmp"}}}`, "spec.container.workingDir", "write /tmp"},
		{box + `"files":{"etc/x":{"content":"a"}}}}}`, "spec.container.files[etc/x]", "write /etc/x"},
		{box + `"files":{"/a/../b":{"content":"a"}}}}}`, "spec.container.files[/a/../b]", "write /b"},
		{box + `"files":{"/a":{"content":"a","fromFile":"b"}}}}}`, "spec.container.files[/a]", "both"},
		{box + `"files":{"/a":{"fromFile":"b"}}}}}`, "spec.container.files[/a].fromFile", "on the client"},
		{box + `"files":{"/a":{"content":"a","mode":644}}}}}`, "spec.container.files[/a].mode", "0644"},
		{box + `"files":{"/a":{"content":"` + strings.Repeat("a", MaxFileBytes/2+1) + `"},"/b":{"content":"` + strings.Repeat("a", MaxFileBytes/2) + `"}}}}}`, "spec.container.files", "together"},
		{box + `"devices":["fuse"]}}}`, "spec.container.devices[0]", "write tun"},
		{box + `"attach":"bridge"}}}`, "spec.container.attach", "did you mean bridged?"},
		{box + `"attach":"bridged","addresses":"pool"}}}`, "spec.container.addresses", "bump in the wire"},
		{box + `"addresses":"none","outbound":"nat"}}}`, "spec.container.outbound", "addresses: private"},
		{box + `"capabilities":["NET_ADMN"]}}}`, "spec.container.capabilities[0]", "did you mean NET_ADMIN?"},
		{box + `"capabilities":["CAP_SYS_ADMIN"]}}}`, "spec.container.capabilities[0]", "isolation"},
		{box + `"sysctls":{"kernel.pid_max":"1"}}}}`, "spec.container.sysctls[kernel.pid_max]", "net."},
		{box + `"sysctls":{"net.ipv4...x":"1"}}}}`, "spec.container.sysctls[net.ipv4...x]", "net."},
		{function + `"container":{"image":"host"}}}`, "spec.container.command", "does not say what to run"},
		{box + `"workingDir":"/"},"state":"stateless"}}`, "spec.state", "not one of none, flow, terminates"},
		{box + `"workingDir":"/"},"packets":"drop"}}`, "spec.packets", "not one of"},
		{box + `"workingDir":"/"},"health":{"tcp":80,"exec":["a"]}}}`, "spec.health", "both"},
		{box + `"workingDir":"/"},"health":{"every":"1s"}}}`, "spec.health", "how to probe"},
		{box + `"workingDir":"/"},"health":{"tcp":80,"every":"1ms"}}}`, "spec.health.every", "10ms to 1h"},
		{box + `"workingDir":"/"},"resources":{"cpu":"99999"}}}`, "spec.resources.cpu", "1m to 4096"},
		// Deployments.
		{`{"kind":"Deployment","metadata":{"name":"d"},"spec":{}}`, "spec.function", "missing"},
		{deploy + `"function":"a/b/c"}}`, "spec.function", "does not name a function"},
		{deploy + `"instances":-1}}`, "spec.instances", "0 to 1000"},
		{deploy + `"instances":1001}}`, "spec.instances", "0 to 1000"},
		{deploy + `"place":{"spread":"nodes"}}}`, "spec.place.spread", "did you mean node?"},
		{deploy + `"place":{"cloudlets":["a","a"]}}}`, "spec.place.cloudlets[1]", "twice"},
		{deploy + `"drain":"25h"}}`, "spec.drain", "0s to 24h"},
		// Chains.
		{ends + thru + `,"tier":"operator"}}`, "spec.tier", "belongs to tenant operator"},
		{ends + thru + `,"priority":1000001}}`, "spec.priority", "out of range"},
		{`{` + chainHead + `,"spec":{"to":"any",` + thru + `}}`, "spec.from", "missing"},
		{`{` + chainHead + `,"spec":{"from":"any","to":{"hosts":"h","deployment":"d"},` + thru + `}}`, "spec.to", "more than one"},
		{`{` + chainHead + `,"spec":{"from":{"prefixes":["10.0.0.0/8"]},"to":{"prefixes":["2001:db8::/32"]},` + thru + `}}`, "spec.to", "spec.from has IPv4"},
		{ends + `"through":[]}}`, "spec.through", "no element"},
		{ends + `"through":[` + strings.Repeat(`{"deployment":"x"},`, MaxElements) + `{"deployment":"y"}]}}`, "spec.through", "32 elements"},
		{ends + `"through":[{}]}}`, "spec.through[0]", "neither"},
		{ends + `"through":[{"function":"f","deployment":"d"}]}}`, "spec.through[0]", "both"},
		{ends + `"through":[{"deployment":"d","instances":2}]}}`, "spec.through[0].instances", "short form"},
		{ends + `"through":[{"deployment":"d"},{"deployment":"default/d"}]}}`, "spec.through[1]", "loop"},
		{ends + `"through":[{"function":"f"},{"deployment":"web-f"}]}}`, "spec.through[1]", "loop"},
		{`{` + chainHead + `,"spec":{"from":"any","to":{"deployment":"d"},"through":[{"deployment":"d"}]}}`, "spec.through[0]", "its spec.to too"},
		{ends + `"through":[{"function":"` + strings.Repeat("f", 60) + `"}]}}`, "spec.through[0].function", "shorten"},
		{elem + `"instances":2000}]}}`, "spec.through[0].instances", "0 to 1000"},
		{elem + `"mode":"mirrored"}]}}`, "spec.through[0].mode", "did you mean mirror?"},
		{elem + `"mode":"mirror","none":"drop"}]}}`, "spec.through[0].none", "cannot drop"},
		{elem + `"mode":"mirror","lost":"reset"}]}}`, "spec.through[0].lost", "cannot reset"},
		{elem + `"lost":"repck"}]}}`, "spec.through[0].lost", "did you mean repick?"},
		{elem + `"weights":{"n1":-1}}]}}`, "spec.through[0].weights[n1]", "0 to 1000"},
		{elem + `"select":[{"protocol":"tpc"}]}]}}`, "spec.through[0].select[0].protocol", "did you mean tcp?"},
		{sel + `"protocol":"256"}]}}`, "spec.select[0].protocol", "not a protocol"},
		{sel + `"protocol":"icmp","destinationPorts":[80]}]}}`, "spec.select[0].destinationPorts", "no ports"},
		{sel + `"sources":["10.0.0.1"],"destinations":["::2"]}]}}`, "spec.select[0].destinations", "IPv6 addresses here"},
		{`{` + chainHead + `,"spec":{"from":{"prefixes":["10.0.0.0/8"]},"to":"any",` + thru + `,"select":[{"sources":["::2"]}]}}`, "spec.select[0].sources", "IPv6 addresses here"},
		{`{` + chainHead + `,"spec":{"from":{"prefixes":["10.0.0.0/8"]},"to":"any",` + thru + `,"select":[{"sources":["11.0.0.1"]}]}}`, "spec.select[0].sources[0]", "outside of spec.from"},
		{ends + thru + `,"exit":"first"}}`, "spec.exit", "entry, last"},
		{ends + thru + `,"direction":"backward"}}`, "spec.direction", "both, forward"},
		{ends + thru + `,"existing":"drop"}}`, "spec.existing", "pass, cut"},
		{ends + thru + `,"adopt":"48h"}}`, "spec.adopt", "0s to 24h"},
		{ends + thru + `,"idle":{"udp":"200ms"}}}`, "spec.idle.udp", "1s to"},
		{ends + thru + `,"idle":{"tcp":"200h"}}}`, "spec.idle.tcp", "1s to"},
		{ends + thru + `,"idle":{"tcp":"1m","tcpTransitory":"2m"}}}`, "spec.idle.tcpTransitory", "at most tcp"},
		{ends + thru + `,"idle":{"tcpClosed":"5m"}}}`, "spec.idle.tcpClosed", "at most tcpTransitory"},
		// What only onpath writes.
		{`{"kind":"Instance","metadata":{"name":"d-abcde"},"spec":{"deployment":"d","node":"n"}}`, "spec.vport", "not a vport"},
		{`{"kind":"Event","metadata":{"name":"a b"},"spec":{"reason":"X"}}`, "metadata.name", "name of an event"},
	} {
		o, err := Decode([]byte(c.in))
		if err != nil {
			t.Errorf("%.200s: %v", c.in, err)
			continue
		}
		err = o.Validate()
		var es Errors
		if !errors.As(err, &es) || len(es) != 1 {
			t.Errorf("%.300s:\n got %v\nwant one error at %s with %q", c.in, err, c.field, c.message)
			continue
		}
		if e := es[0]; e.Field != c.field || !strings.Contains(e.Error(), c.message) || e.Code != CodeInvalid || e.Object == "" {
			t.Errorf("%.300s:\n got %v\nwant %s with %q", c.in, e, c.field, c.message)
		}
	}
}

// TestValidateDefaults checks that what means the same becomes the same, and
// that a second Validate changes nothing.
func TestValidateDefaults(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{`{"kind":"Tenant","metadata":{"name":"a"}}`, `{"apiVersion":"onpath/v1alpha1","kind":"Tenant","metadata":{"name":"a"},"spec":{"maxNewFlows":100000}}`},
		{`{"kind":"Tenant","metadata":{"name":"operator"}}`, `{"apiVersion":"onpath/v1alpha1","kind":"Tenant","metadata":{"name":"operator"},"spec":{"maxNewFlows":-1}}`},
		{`{"kind":"Tenant","metadata":{"name":"a"},"spec":{"addresses":["2001:db8::/32","10.1.0.0/24","10.1.0.0/24","10.0.0.1"]}}`,
			`{"apiVersion":"onpath/v1alpha1","kind":"Tenant","metadata":{"name":"a"},"spec":{"maxNewFlows":100000,"addresses":["10.0.0.1","10.1.0.0/24","2001:db8::/32"]}}`},
		{`{"kind":"Hosts","metadata":{"name":"h"},"spec":{"addresses":["10.0.0.2","10.0.0.1","10.0.0.1/32"]}}`,
			`{"apiVersion":"onpath/v1alpha1","kind":"Hosts","metadata":{"name":"h","tenant":"default"},"spec":{"addresses":["10.0.0.1","10.0.0.2"]}}`},
		{`{"kind":"Node","metadata":{"name":"n"},"spec":{"cloudlet":"c","underlay":{"address":"10.0.0.1"}}}`,
			`{"apiVersion":"onpath/v1alpha1","kind":"Node","metadata":{"name":"n"},"spec":{"cloudlet":"c","schedulable":true,"underlay":{"address":"10.0.0.1","port":4797}}}`},
		{`{"kind":"Function","metadata":{"name":"f"},"spec":{"container":{"image":"host","command":["sleep"],"capabilities":["NET_RAW","cap_net_admin"],"files":{"/a":{"content":"x"}}},"health":{"tcp":80}}}`,
			`{"apiVersion":"onpath/v1alpha1","kind":"Function","metadata":{"name":"f","tenant":"default"},"spec":{"container":{"image":"host","command":["sleep"],"files":{"/a":{"content":"x","mode":420}},"attach":"routed","capabilities":["NET_ADMIN","NET_RAW"],"addresses":"private","outbound":"none"},"state":"flow","packets":"keep","resources":{"cpu":"100m","memory":"64Mi"},"health":{"tcp":80,"every":"1s","failures":3,"start":"1m"}}}`},
		{`{"kind":"Deployment","metadata":{"name":"d"},"spec":{"function":"default/f"}}`,
			`{"apiVersion":"onpath/v1alpha1","kind":"Deployment","metadata":{"name":"d","tenant":"default"},"spec":{"function":"f","instances":1,"place":{"spread":"node"},"drain":"30s"}}`},
		{`{` + chainHead + `,"spec":{"from":"any","to":{"hosts":"default/h"},"select":[{"protocol":6,"destinationPorts":["443",80,"80-80"]}],"through":[{"function":"operator/f"},{"deployment":"d","mode":"mirror"}]}}`,
			`{` + `"apiVersion":"onpath/v1alpha1","kind":"Chain","metadata":{"name":"web","tenant":"default"},"spec":{"tier":"tenant","from":"any","to":{"hosts":"h"},"select":[{"protocol":"tcp","destinationPorts":["80","443"]}],"through":[{"function":"operator/f","instances":1,"place":{"spread":"node"},"mode":"inline","none":"drop"},{"deployment":"d","mode":"mirror","none":"bypass"}],"exit":"entry","direction":"both","adopt":"1m","existing":"pass"}}`},
	} {
		o, err := Decode([]byte(c.a))
		if err != nil {
			t.Fatalf("%s: %v", c.a, err)
		}
		for pass := range 2 {
			if err := o.Validate(); err != nil {
				t.Fatalf("%s: pass %d: %v", c.a, pass, err)
			}
			got, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.b {
				t.Errorf("pass %d:\n got %s\nwant %s", pass, got, c.b)
			}
		}
	}
}

func TestValidateCollectsErrorsInOrder(t *testing.T) {
	o, err := Decode([]byte(`{` + chainHead + `,"spec":{"priority":9999999,"from":{},"to":"any","through":[{"function":"f","mode":"x"}],"exit":"y"}}`))
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, e := range o.Validate().(Errors) {
		fields = append(fields, e.Field)
	}
	if got, want := strings.Join(fields, " "), "spec.priority spec.from spec.through[0].mode spec.exit"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"inline", "mirror", "destinationPorts", "tcp"}
	for in, want := range map[string]string{
		"inlin": "inline", "INLINE": "inline", "mirorr": "mirror", "destinationPort": "destinationPorts",
		"dest": "destinationPorts", "tpc": "tcp", "zzz": "", "": "", strings.Repeat("x", 1000): "",
	} {
		if got := Nearest(in, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
