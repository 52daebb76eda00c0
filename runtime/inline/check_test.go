package inline

import (
	"errors"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

func TestCheckConfig(t *testing.T) {
	for _, c := range []struct {
		object, name, value string
		file                bool
		field, says         string // none: it is right
	}{
		{"firewall", "default", "drop", false, "", ""},
		{"firewall", "defualt", "drop", false, "config[defualt]", `has no setting "defualt"`},
		{"firewall", "default", "dorp", false, "config[default]", `"dorp"`},
		{"firewall", "rules", "drop udp\ndrop tcq to 10.0.0.0/8", true, "files[rules]", "line 2"},
		{"firewall", "rules", "drop tcp to 10.0.0.0/8 port 80", true, "", ""},
		{"ratelimit", "rate", "fast", false, "config[rate]", `"fast"`},
		{"ratelimit", "per", "source", false, "", ""}, // the rate may come with the deployment
		{"ratelimit", "pre", "source", false, "config[pre]", `has no setting "pre"`},
		{"monitor", "collector", "10.0.0.1", false, "config[collector]", "is not understood"},
		{"loadbalancer", "backends", "10.0.0.1\n10.0.0.300", true, "files[backends]", "line 2"},
		{"loadbalancer", "backends", "10.0.0.1:80", true, "", ""}, // so may the ports
		{"loadbalancer", "virtaul", "10.0.0.1", false, "config[virtaul]", `has no setting "virtaul"`},
		{"loadbalancer", "virtual", "10.0.0.1,2001:db8::1", false, "", ""}, // and the backends
	} {
		e := &onpath.EBPFSpec{Object: c.object, Config: onpath.Env{c.name: c.value}}
		if c.file {
			e.Config, e.Files = nil, map[string]onpath.File{c.name: {Content: c.value}}
		}
		err := Checker{comeWithOnpath}.CheckConfig(&onpath.FunctionSpec{EBPF: e}, false)
		var known *onpath.Error
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s, %s: %q is refused: %v", c.object, c.name, c.value, err)
		case c.says == "":
		case !errors.As(err, &known) || known.Code != onpath.CodeInvalid || known.Field != c.field || !strings.Contains(known.Message, c.says):
			t.Errorf("%s, %s: %q gives %v; must be about %s and say %s", c.object, c.name, c.value, err, c.field, c.says)
		}
	}
}

// TestComesWith: a function that is not there is refused, with what may be meant.
func TestComesWith(t *testing.T) {
	for name, remedy := range map[string]string{
		"firewall": "", "firewal": "did you mean firewall?", "mine.o": "write ./mine.o for a file beside this one", "x": "write ./FILE.o, or one of firewall",
	} {
		_, err := Checker{comeWithOnpath}.Inspect(&onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: name}})
		var known *onpath.Error
		switch {
		case remedy == "" && err != nil:
			t.Errorf("%s is refused: %v", name, err)
		case remedy == "":
		case !errors.As(err, &known) || known.Field != "spec.ebpf.object" || !strings.HasPrefix(known.Remedy, remedy):
			t.Errorf("%s gives %v; must say %s", name, err, remedy)
		}
	}
}

// TestCheckLoadbalancer: virtual addresses and backends that stand together can meet,
// each by its IP version.
func TestCheckLoadbalancer(t *testing.T) {
	for _, c := range []struct{ virtual, backends, field, says string }{
		{"203.0.113.10", "10.0.0.1", "", ""},
		{"203.0.113.10,2001:db8::10", "10.0.0.1\n2001:db8::1 weight 0", "", ""},
		{"2001:db8::10", "2001:db8::1", "", ""},
		{"203.0.113.10,2001:db8::10", "10.0.0.1\n10.0.0.2", "config[virtual]", "2001:db8::10 is IPv6, and no backend is"},
		{"203.0.113.10,2001:db8::10", "2001:db8::1", "config[virtual]", "203.0.113.10 is IPv4, and no backend is"},
		{"203.0.113.10", "10.0.0.1\n2001:db8::1", "files[backends]", "2001:db8::1 is IPv6, and no virtual address is"},
		{"2001:db8::10", "10.0.0.1", "files[backends]", "10.0.0.1 is IPv4, and no virtual address is"},
		{"2001:db8::10", "[2001:db8::1]:80\n10.0.0.1", "files[backends]", "10.0.0.1 is IPv4"}, // ports may come with a deployment
		{"203.0.113.10", "203.0.113.10", "files[backends]", "203.0.113.10"},
	} {
		err := Checker{comeWithOnpath}.CheckConfig(&onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "loadbalancer", Config: onpath.Env{"virtual": c.virtual},
			Files: map[string]onpath.File{"backends": {Content: c.backends}}}}, false)
		var known *onpath.Error
		switch {
		case c.says == "" && err != nil:
			t.Errorf("virtual %s with %q is refused: %v", c.virtual, c.backends, err)
		case c.says == "":
		case !errors.As(err, &known) || known.Code != onpath.CodeInvalid || known.Field != c.field || !strings.Contains(known.Message, c.says) || known.Remedy == "":
			t.Errorf("virtual %s with %q gives %v; must be about %s and say %s", c.virtual, c.backends, err, c.field, c.says)
		}
	}
}

// TestCheckWhole: where nothing more comes, what is missing is a fault, with its remedy.
func TestCheckWhole(t *testing.T) {
	for _, c := range []struct {
		object string
		config onpath.Env
		says   string // none: it is right
	}{
		{"ratelimit", nil, "rate: is missing"},
		{"ratelimit", onpath.Env{"per": "source"}, "rate: is missing"},
		{"ratelimit", onpath.Env{"rate": "10Mbit"}, ""},
		{"loadbalancer", onpath.Env{"virtual": "203.0.113.10"}, "backends"},
		{"firewall", nil, ""},
		{"monitor", nil, ""},
	} {
		e := &onpath.EBPFSpec{Object: c.object, Config: c.config}
		if err := (Checker{comeWithOnpath}).CheckConfig(&onpath.FunctionSpec{EBPF: e}, false); err != nil {
			t.Errorf("%s %v is refused although more may come: %v", c.object, c.config, err)
		}
		err := Checker{comeWithOnpath}.CheckConfig(&onpath.FunctionSpec{EBPF: e}, true)
		var known *onpath.Error
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s %v is refused: %v", c.object, c.config, err)
		case c.says == "":
		case !errors.As(err, &known) || known.Code != onpath.CodeInvalid || known.Field != "config" || !strings.Contains(known.Message, c.says) || known.Remedy == "":
			t.Errorf("%s %v gives %v; must say %s", c.object, c.config, err, c.says)
		}
	}
}
