package instance

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// A probe that takes too long while all CPUs are busy says nothing about the
// instance: it may not have run at all. Then it gets so many times its time.
const latePatience = 10

var errLate = errors.New("no answer in time")

// patiently gives a context that ends with errLate after limit, or when the CPUs
// were busy, after that limit in which they were not, latePatience times at most.
func patiently(ctx context.Context, limit time.Duration, times func() cpuTimes) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	before := times()
	go func() {
		tick := time.NewTicker(limit)
		defer tick.Stop()
		for range latePatience {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := times()
			if !now.busySince(before) {
				break
			}
			before = now
		}
		cancel(errLate)
	}()
	return ctx, func() { cancel(nil) }
}

// cpuTimes are what all CPUs together have spent since the machine started, in
// ticks.
type cpuTimes struct{ idle, all uint64 }

// readCPUTimes reads /proc/stat; zero times if it cannot.
func readCPUTimes() cpuTimes {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return cpuTimes{}
	}
	defer f.Close()
	line, _ := bufio.NewReader(f).ReadString('\n')
	return parseCPUTimes(line)
}

// parseCPUTimes reads the first line of /proc/stat (proc(5)): user, nice, system,
// idle, iowait, irq, softirq, steal; what follows is in user and nice already.
func parseCPUTimes(line string) cpuTimes {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpuTimes{}
	}
	var t cpuTimes
	for i, s := range fields[1:9] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return cpuTimes{}
		}
		t.all += n
		if i == 3 || i == 4 {
			t.idle += n
		}
	}
	return t
}

// busySince tells whether the CPUs rested for less than a tenth of the time since
// before.
func (t cpuTimes) busySince(before cpuTimes) bool {
	all := t.all - before.all
	return before.all > 0 && t.all > before.all && (t.idle-before.idle)*10 < all
}
