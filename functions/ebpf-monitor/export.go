package monitor

import (
	"context"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/onpath/onpath/functions/ebpf-monitor/ipfix"
	"github.com/onpath/onpath/sdk"
)

// exporter sends what a monitor has counted to a collector.
type exporter struct {
	log       *slog.Logger
	collector netip.AddrPort
	encoder   ipfix.Encoder
	conn      net.Conn // nil: to be dialled

	before map[countKey]countValue // what the collector has been told
	since  time.Time

	row  int  // of rounds that went well
	said bool // that one did not
}

// runExport sends what changed, at intervals, until ctx ends.
func runExport(ctx context.Context, in *sdk.Instance, x export, before map[countKey]countValue) {
	h := fnv.New32a()
	h.Write([]byte(in.ID))
	e := exporter{
		log: in.Log.With("instance", in.ID, "collector", x.collector), collector: x.collector,
		encoder: ipfix.Encoder{Domain: h.Sum32()}, before: before, since: time.Now(),
	}
	defer e.close()
	tick := time.NewTicker(x.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		after, err := readCounts(in.Tables[countsTable])
		if err == nil {
			err = e.send(after, time.Now(), monotonic())
		}
		e.tell(err)
	}
}

// send sends what has been counted since it last succeeded. now and mono are the same
// instant by two clocks.
func (e *exporter) send(after map[countKey]countValue, now time.Time, mono uint64) error {
	encoder := e.encoder
	for _, msg := range encoder.Encode(now, deltas(e.before, after, e.since, now, mono)) {
		if err := e.write(msg); err != nil {
			return err
		}
	}
	e.encoder, e.before, e.since = encoder, after, now
	return nil
}

// write dials anew after each failure: the route, or our own address, may be another
// by then.
func (e *exporter) write(msg []byte) (err error) {
	if e.conn == nil {
		if e.conn, err = net.Dial("udp", e.collector.String()); err != nil {
			e.conn = nil
			return err
		}
	}
	if _, err = e.conn.Write(msg); err != nil {
		e.close()
	}
	return err
}

func (e *exporter) close() {
	if e.conn != nil {
		_ = e.conn.Close()
		e.conn = nil
	}
}

// tell warns of a failure once. Where nobody listens every second message is taken,
// before the kernel hears of it: two in a row tell that it is over.
func (e *exporter) tell(err error) {
	if err == nil {
		if e.row++; e.row > 1 {
			e.said = false
		}
		return
	}
	e.row = 0
	if !e.said {
		e.said = true
		e.log.Warn("cannot export flows; what is counted is sent when it is possible again", "err", err)
	}
}
