package doctor

import (
	"strings"
	"testing"
)

// TestTunnelQueues: a device of several queues that shares UDP out by addresses alone is named,
// unless the kernel spreads its packets; so is none whose driver does not say.
func TestTunnelQueues(t *testing.T) {
	device := func(name, rps string, queues ...string) map[string]string {
		files := map[string]string{"/sys/class/net/" + name + "/device/x": ""}
		for _, q := range queues {
			files["/sys/class/net/"+name+"/queues/"+q+"/rps_cpus"] = rps
		}
		return files
	}
	files := map[string]string{"/sys/class/net/veth0/queues/rx-0/rps_cpus": "0", "/sys/class/net/veth0/queues/rx-1/rps_cpus": "0"}
	for _, d := range []map[string]string{
		device("ports", "00\n", "rx-0", "rx-1"), device("single", "00\n", "rx-0"), device("spread", "0f\n", "rx-0", "rx-1"),
		device("silent", "00\n", "rx-0", "rx-1"), device("bad", "00000000,00000000\n", "rx-0", "rx-1"),
	} {
		for name, text := range d {
			files[name] = text
		}
	}
	hashes := func(device string) (ports, known bool) { return device == "ports", device != "silent" }
	rs := queuesOf(machine(t, files), hashes)
	if len(rs) != 1 || rs[0].Status != Warn || !strings.HasPrefix(rs[0].Detail, "bad: ") || !strings.Contains(rs[0].Remedy, "ethtool -N bad rx-flow-hash udp4 sdfn") {
		t.Errorf("got %+v", rs)
	}
	if rs = queuesOf(machine(t, nil), hashes); len(rs) != 1 || rs[0].Status != OK {
		t.Errorf("without devices: %+v", rs)
	}
}
