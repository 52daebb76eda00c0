package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/bench/traffic"
)

// Machine says where, when and how the suite ran.
type Machine struct {
	Kernel  string    `json:"kernel"`
	Arch    string    `json:"arch"`
	CPU     string    `json:"cpu"`
	CPUs    int       `json:"cpus"`
	Memory  int64     `json:"memory"` // bytes
	Onpath  string    `json:"onpath"`
	Started time.Time `json:"started"`
	Quick   bool      `json:"quick,omitempty"` // figures mean nothing
	Rounds  int       `json:"rounds,omitempty"`
	// ForwardingCPU is the one that source, contestants and sink share.
	ForwardingCPU int `json:"forwardingCPU"`
	// LossTolerance is the share of packets that may be lost in a trial that
	// counts as loss-free.
	LossTolerance float64 `json:"lossTolerance"`
	// Seconds that each benchmark took.
	Seconds  map[string]float64 `json:"seconds"`
	Skipped  []Skip             `json:"skipped,omitempty"`
	Profiles []Profile          `json:"profiles,omitempty"`
}

// Skip says which contestant of a benchmark, or which of its cases, is absent.
type Skip struct {
	Benchmark  string `json:"benchmark"`
	Contestant string `json:"contestant"`
	Why        string `json:"why"`
}

func describe(o Options) Machine {
	m := Machine{Arch: runtime.GOARCH, CPU: cpuModel(), CPUs: runtime.NumCPU(), Onpath: o.Version, Started: time.Now().UTC().Truncate(time.Second),
		Quick: o.Quick, Rounds: o.Rounds, ForwardingCPU: traffic.LastCPU(), LossTolerance: lossTolerance, Seconds: map[string]float64{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	return m
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if k, v, _ := strings.Cut(in.Text(), ":"); strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// cpuTime is how long a CPU has worked since boot: user, system, interrupts and
// soft interrupts, by the scheduler's ticks (10 ms), as /proc/stat has it.
func cpuTime(cpu int) (time.Duration, error) { return workTime("cpu" + strconv.Itoa(cpu)) }

// allCPUTime is that of all CPUs together.
func allCPUTime() (time.Duration, error) { return workTime("cpu") }

func workTime(name string) (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != name {
			continue
		}
		var ticks int64
		for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
			n, _ := strconv.ParseInt(f[i], 10, 64)
			ticks += n
		}
		return time.Duration(ticks) * 10 * time.Millisecond, nil
	}
	return 0, os.ErrNotExist
}

// busy is the CPU time that fn took on a CPU.
func busy(cpu int, fn func() error) (time.Duration, error) {
	before, err := cpuTime(cpu)
	if err != nil {
		return 0, err
	}
	if err := fn(); err != nil {
		return 0, err
	}
	after, err := cpuTime(cpu)
	return after - before, err
}
