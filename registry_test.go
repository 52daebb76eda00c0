package onpath_test

import (
	"testing"

	"github.com/onpath/onpath"
)

func TestBadRegistry(t *testing.T) {
	listed := &onpath.Tenant{Spec: onpath.TenantSpec{Registries: []string{"ghcr.io/acme", "quay.io"}}}
	for image, want := range map[string][2]bool{ // bad without a list, and with one
		"docker.io/library/nginx":           {false, true},
		"ghcr.io/acme/web:1":                {false, false},
		"ghcr.io/acmeevil/web:1":            {false, true},
		"quay.io/x/y":                       {false, false},
		"quay.io.example.net/x":             {false, true},
		"127.0.0.1:5000/x":                  {true, true},
		"127.1/x":                           {true, true},
		"2130706433/x":                      {true, true},
		"0x7f000001/x":                      {true, true},
		"169.254.169.254/latest":            {true, true},
		"localhost/x":                       {true, true},
		"localhost:5000/x":                  {true, true},
		"a.localhost/x":                     {true, true},
		"registry/x":                        {true, true},
		"metadata.google.internal/computeM": {true, true},
		"10.0.0.1:443/x":                    {true, true},
	} {
		for i, tenant := range []*onpath.Tenant{nil, listed} {
			if got := onpath.BadRegistry(image, tenant) != ""; got != want[i] {
				t.Errorf("%s: bad %t, want %t", image, got, want[i])
			}
		}
	}
}
