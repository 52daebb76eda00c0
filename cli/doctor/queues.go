package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/onpath/onpath/internal/offload"
)

// tunnelQueues looks for network devices that hash UDP by addresses alone: all tunnel packets
// between two nodes then come in by one queue, which is one CPU's.
func tunnelQueues(_ context.Context, m Machine) []Result { return queuesOf(m, offload.HashesPorts) }

// queuesOf is tunnelQueues, where hashesPorts tells whether a device hashes UDP by its ports,
// too, and whether its driver says so at all.
func queuesOf(m Machine, hashesPorts func(device string) (ports, known bool)) []Result {
	r := Result{Name: "tunnel queues", Status: OK, Detail: "no device leads all packets of a tunnel to one of several queues"}
	devices, err := filepath.Glob(m.path("/sys/class/net/*/device"))
	if err != nil {
		return []Result{{Name: r.Name, Status: Warn, Detail: "network devices cannot be listed: " + err.Error()}}
	}
	var one []string
	for _, d := range devices {
		name := filepath.Base(filepath.Dir(d))
		queues, err := filepath.Glob(m.path("/sys/class/net/" + name + "/queues/rx-*"))
		if err != nil || len(queues) < 2 {
			continue
		}
		spread := strings.Trim(m.read("/sys/class/net/"+name+"/queues/rx-0/rps_cpus"), "0,\n") != "" // by the kernel
		if ports, known := hashesPorts(name); known && !ports && !spread {
			one = append(one, name)
		}
	}
	if len(one) > 0 {
		r.Status = Warn
		r.Detail = strings.Join(one, ", ") + ": UDP is shared out to receive queues by addresses alone, " +
			"so one CPU takes all tunnel packets of another node"
		r.Remedy = fmt.Sprintf("on devices of the underlay: ethtool -N %s rx-flow-hash udp4 sdfn (and udp6); "+
			"or have the kernel spread packets (rps_cpus)", one[0])
	}
	return []Result{r}
}
