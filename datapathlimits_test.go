package onpath

import (
	"strconv"
	"strings"
	"testing"
)

// TestTenantsFit: a node's data path has room for so many tenants, whether of paths or of
// instances, and says so of more.
func TestTenantsFit(t *testing.T) {
	c := &DatapathConfig{Node: "gw", Paths: []Path{{ID: 1, Tenant: "t0"}}}
	for n := range MaxTenants {
		c.Vports = append(c.Vports, Vport{ID: VportID(n + 2), Kind: VportInstance, Tenant: "t" + strconv.Itoa(n)})
	}
	if err := c.Fits(); err != nil {
		t.Errorf("with %d tenants: %v", MaxTenants, err)
	}
	c.Vports = append(c.Vports, Vport{ID: 9000, Kind: VportInstance, Tenant: "one more"})
	if err := c.Fits(); CodeOf(err) != CodeNoCapacity || !strings.Contains(err.Error(), "4096 tenants") {
		t.Errorf("with %d tenants: %v", MaxTenants+1, err)
	}
}
