package ebpf

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
		{"firewall", "defualt", "drop", false, "config[defualt]", `cannot be told "defualt"`},
		{"firewall", "default", "dorp", false, "config[default]", `"dorp"`},
		{"firewall", "rules", "drop udp\ndrop tcq to 10.0.0.0/8", true, "files[rules]", "line 2"},
		{"firewall", "rules", "drop tcp to 10.0.0.0/8 port 80", true, "", ""},
		{"ratelimit", "rate", "fast", false, "config[rate]", `"fast"`},
		{"ratelimit", "per", "source", false, "", ""}, // the rate may come with the deployment
		{"ratelimit", "pre", "source", false, "config[pre]", `cannot be told "pre"`},
		{"monitor", "collector", "10.0.0.1", false, "config[collector]", "is not understood"},
		{"loadbalancer", "backends", "10.0.0.1\n10.0.0.300", true, "files[backends]", "line 2"},
		{"loadbalancer", "backends", "10.0.0.1:80", true, "", ""}, // so may the ports
		{"loadbalancer", "virtaul", "10.0.0.1", false, "config[virtaul]", `cannot be told "virtaul"`},
	} {
		e := &onpath.EBPFSpec{Object: c.object, Config: onpath.Env{c.name: c.value}}
		if c.file {
			e.Config, e.Files = nil, map[string]onpath.File{c.name: {Content: c.value}}
		}
		err := CheckConfig(e)
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
