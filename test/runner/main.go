// Command runner runs all tests the way people and CI do: vet, then every
// package, test binaries as root; with the race detector where goroutines of the
// test binary share memory (-soak: everywhere). It prints what was skipped and why,
// fails on a skip that nobody announced in skips.txt, and fails if anything is left
// behind on the machine.
package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed skips.txt
var skipsText string

//go:embed soak.txt
var soakText string

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type outcome struct {
	mu                      sync.Mutex // several go test at once report
	start                   time.Time
	passed, failed, skipped int
	skips                   []string // "package.Test: reason"
	failures                []string
	output                  map[string][]string
	slow                    []string
}

func main() {
	soak := flag.Bool("soak", false, "run the long tests too (ONPATH_SOAK=1)")
	run := flag.String("run", "", "only tests that match, as go test -run")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	if err := execute(*soak, *run, packages); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

func execute(soak bool, run string, packages []string) error {
	start := time.Now()
	before := machineState()
	goBin := os.Getenv("GO") // as make was told
	if goBin == "" {
		goBin = "go"
	}
	fmt.Println("the first test binaries take minutes where nothing is cached; every package is reported when it is done")
	// Tests that may run beside others of their package wait for the kernel mostly.
	parallel := strconv.Itoa(2 * runtime.NumCPU())
	args := []string{"test", "-vet=off", "-json", "-parallel", parallel, "-timeout", "18m"}
	if soak {
		os.Setenv("ONPATH_SOAK", "1")
		args = append(args, "-timeout", "3h", "-count", "1")
	}
	if os.Getenv("CI") != "" {
		args = append(args, "-count", "1")
	}
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0") // or each test binary waits for a second when all is done
	}
	if bin, err := filepath.Abs("bin/onpath"); err == nil {
		os.Setenv("ONPATH_BIN", bin)
	}
	if run != "" {
		args = append(args, "-run", run)
	}
	if long := soakTests(); !soak && run == "" {
		args = append(args, "-skip", "^("+strings.Join(long, "|")+")$")
		fmt.Println("make soak alone runs", strings.Join(long, ", "))
	}
	others, alone, err := apart(goBin, packages)
	if err != nil {
		return err
	}
	res := &outcome{start: start, output: map[string][]string{}}
	vetted := vet(goBin, packages)
	var testErr error
	if len(others) == 0 {
		testErr = <-vetted
	}
	for _, together := range parts(others, alone, soak || run != "") {
		testErr = errors.Join(testErr, res.test(goBin, args, together, soak), <-vetted) // before what is to be undisturbed
	}
	unexpected := res.report()
	left := leftovers(before)
	for _, l := range left {
		fmt.Println("left behind:", l)
	}
	for _, f := range res.failures {
		fmt.Printf("failed %s\n", f)
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", res.passed, res.failed, res.skipped)
	fmt.Printf("in %s\n", time.Since(start).Round(time.Second))
	switch {
	case testErr != nil || res.failed > 0:
		return fmt.Errorf("%d tests failed (%w)", res.failed, testErr)
	case len(unexpected) > 0:
		return fmt.Errorf("%d tests were skipped for a reason that test/runner/skips.txt does not allow", len(unexpected))
	case len(left) > 0:
		return fmt.Errorf("the tests left %d things behind on this machine", len(left))
	}
	return nil
}

// test runs parts beside each other, and of each the packages with the race detector
// beside those without.
func (o *outcome) test(goBin string, args []string, together []part, raceAll bool) error {
	// Without the race detector as bin/onpath is built, so that most is compiled already.
	// A debugger's tables take a seventh of compiling. Many packages at once: most wait.
	plain, raced := []string{"-trimpath", "-p", "3"}, []string{"-trimpath", "-p", "3", "-race", "-gcflags=all=-dwarf=false"}
	errs := make([]error, 2*len(together))
	var running sync.WaitGroup
	for i, part := range together {
		for j, flags := range [][]string{plain, raced} {
			packages := slices.DeleteFunc(slices.Clone(part.packages), func(p string) bool { return (raceAll || needsRace(p)) != (j == 1) })
			if len(packages) == 0 {
				continue
			}
			cmd := exec.Command(goBin, slices.Concat(args, flags, asRoot(part.e2e), packages)...)
			cmd.Env = append(os.Environ(), "ONPATH_E2E="+part.e2e, fmt.Sprint("CGO_ENABLED=", j))
			running.Go(func() { errs[2*i+j] = o.follow(cmd, part) })
		}
	}
	running.Wait()
	return errors.Join(errs...)
}

// follow runs go test and takes in what it reports.
func (o *outcome) follow(cmd *exec.Cmd, of part) error {
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	o.read(pipe, of)
	return cmd.Wait()
}

// soakTests are those that take too long for `make test`.
func soakTests() (names []string) {
	for line := range strings.Lines(soakText) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			names = append(names, strings.TrimSpace(line))
		}
	}
	return names
}

const module = "github.com/onpath/onpath"

// unraced are folders whose tests the race detector makes three to six times slower and
// can tell little about: workers of plan write to what is their own, signal has no
// goroutines, the data path is a program in the kernel driven by one goroutine, the others
// start bin/onpath, which is built without the detector. unracedAlone join parts whose own
// tests run with it, and would have the whole program compiled once more, or run a whole
// etcd with it. `make soak` runs all with it all the same.
var (
	unraced      = []string{"bench", "cmd", "datapath", "docs", "functions", "plan", "signal", "test"}
	unracedAlone = []string{module, module + "/cli", module + "/cli/reference", module + "/demo", module + "/store/etcd"}
)

func needsRace(pkg string) bool {
	folder, _, _ := strings.Cut(strings.TrimPrefix(pkg, module+"/"), "/")
	return !slices.Contains(unracedAlone, pkg) && !slices.Contains(unraced, folder)
}

// vet begins go vet, which is to leave the processors to the tests beside it. What the
// channel gives is its error; it is closed when vet is done.
func vet(goBin string, packages []string) <-chan error {
	words := append([]string{goBin, "vet", "-trimpath"}, packages...)
	if nice, err := exec.LookPath("nice"); err == nil {
		words = append([]string{nice, "-n", "10"}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile builds, so that hardly anything is compiled for it
	done := make(chan error, 1)
	go func() {
		defer close(done)
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Printf("FAIL go vet\n%s", out)
			done <- fmt.Errorf("go vet: %w", err)
		}
	}()
	return done
}

// asRoot are the flags by which test binaries, which are built as the user, run as root.
// The environment is set by env, because sudo has a PATH of its own and may forbid to
// keep variables; HOME is root's, lest files of root's get into the user's caches.
func asRoot(e2e string) []string {
	if os.Getuid() == 0 {
		return nil
	}
	words := []string{"sudo", "-H", "env", "'PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin'"}
	if e2e != "" {
		words = append(words, "ONPATH_E2E="+e2e)
	}
	for _, name := range []string{"ONPATH_BIN", "ONPATH_SOAK", "ONPATH_SEED", "ONPATH_CACHE", "GORACE", "CI"} {
		if v := os.Getenv(name); v != "" {
			words = append(words, "'"+name+"="+v+"'")
		}
	}
	return []string{"-exec", strings.Join(words, " ")}
}

// part is packages that go test runs at once.
type part struct {
	packages []string
	e2e      string // which tests of the undisturbed package: ONPATH_E2E
}

// parts are what runs at once, one after the other. What of the undisturbed package bears
// others beside it runs with these, in two parts, unless it is to be run whole; then the
// quiet ones, too, run alone.
func parts(others, alone []string, whole bool) (list [][]part) {
	first := part{packages: slices.Clone(others)}
	slices.SortStableFunc(first.packages, func(a, b string) int { return rank(a) - rank(b) })
	var then [][]part
	for _, p := range quiet {
		if at := slices.Index(first.packages, p); whole && at >= 0 {
			first.packages = slices.Delete(first.packages, at, at+1)
			then = append(then, []part{{packages: []string{p}}})
		}
	}
	switch {
	case len(alone) == 0:
		return append([][]part{{first}}, then...)
	case whole || len(others) == 0:
		return slices.Concat([][]part{{first}}, then, [][]part{{{packages: alone}}})
	}
	return [][]part{{{alone, "first"}, {alone, "second"}, first}, {{alone, "others"}}}
}

// quiet are packages whose long tests want the machine for themselves: one measures a
// link of a gigabit in user space, one compares what is on the machine before and after.
var quiet = []string{"github.com/onpath/onpath/lab", "github.com/onpath/onpath/test/demo"}

// undisturbed is the package that sends at the highest rate the machine carries
// and demands that nothing is lost: nothing else runs beside the tests that do.
const undisturbed = "github.com/onpath/onpath/test/e2e"

// longest are the packages that take longest, the longest first; they begin first, lest one
// of them is still at it when nothing is left to do beside it. Those below the empty line
// run with the race detector.
var longest = []string{
	"datapath/ebpf", "test/functions", "store/etcd", "test/gateways", "bench", "plan", "bench/traffic", "test/badinput", "test/servers", "test/attack",
	"test/uplinks", "cli",

	"runtime/container", "lab", "node", "control/pool", "api", "accel", "accel/wanopt", "control", "cli/functest", "api/session",
	"engine", "control/archive", "api/manifest", "runtime/relay", "control/translog", "api/change",
}

// apart takes the undisturbed package out of the others.
func apart(goBin string, packages []string) (others, alone []string, err error) {
	cmd := exec.Command(goBin, append([]string{"list"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	for _, p := range strings.Fields(string(out)) {
		if p == undisturbed {
			alone = append(alone, p)
		} else {
			others = append(others, p)
		}
	}
	return others, alone, nil
}

func rank(pkg string) int {
	if at := slices.Index(longest, strings.TrimPrefix(pkg, module+"/")); at >= 0 {
		return at
	}
	return len(longest)
}

func (o *outcome) read(r io.Reader, of part) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 1<<20), 1<<24)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			fmt.Println(in.Text()) // a build failure
			continue
		}
		o.mu.Lock()
		o.add(e, of)
		o.mu.Unlock()
	}
}

func (o *outcome) add(e event, of part) {
	name := strings.TrimPrefix(e.Package, "github.com/onpath/onpath/") + " " + e.Test
	if e.Test == "" && of.e2e != "" {
		name += "(" + of.e2e + ") "
	}
	switch e.Action {
	case "build-output": // of no package's test
		fmt.Print(e.Output)
	case "output":
		o.output[name] = append(o.output[name], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			o.packageDone(name, e)
			return
		}
		switch e.Action {
		case "pass":
			o.passed++
		case "fail":
			o.failed++
			o.failures = append(o.failures, name+": "+strings.Join(said(o.output[name]), "; "))
			fmt.Printf("--- FAIL %s\n%s", name, strings.Join(o.output[name], ""))
		case "skip":
			o.skipped++
			o.skips = append(o.skips, name+": "+reason(o.output[name]))
		}
		if e.Elapsed > 10 {
			o.slow = append(o.slow, fmt.Sprintf("%s %.0f s", name, e.Elapsed))
		}
		delete(o.output, name)
	}
}

func (o *outcome) packageDone(name string, e event) {
	switch e.Action {
	case "fail":
		o.failed++
		fmt.Printf("FAIL %s\n%s", name, strings.Join(o.output[name], ""))
	case "pass":
		fmt.Printf("ok   %s(%.1f s, at %s)\n", name, e.Elapsed, time.Since(o.start).Round(time.Second))
	}
	delete(o.output, name)
}

// reason is what the test said when it skipped: the last line with a file position.
func reason(lines []string) string {
	if told := said(lines); len(told) > 0 {
		return told[len(told)-1]
	}
	return "no reason given"
}

// said are a test's own lines, which begin with a file position, without the ends of logs.
func said(lines []string) (told []string) {
	position := regexp.MustCompile(`^\S+\.go:\d+: (.+)$`)
	for _, l := range lines {
		if m := position.FindStringSubmatch(strings.TrimSpace(l)); m != nil && !strings.HasPrefix(m[1], "--- ") {
			told = append(told, m[1])
		}
	}
	return told
}

// report prints the skips and returns those that are not announced.
func (o *outcome) report() (unexpected []string) {
	var allowed []*regexp.Regexp
	for _, l := range strings.Split(skipsText, "\n") {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
			allowed = append(allowed, regexp.MustCompile(l))
		}
	}
	slices.Sort(o.skips)
	for _, s := range o.skips {
		ok := false
		for _, re := range allowed {
			ok = ok || re.MatchString(s)
		}
		mark := "skipped"
		if !ok {
			mark = "SKIPPED UNEXPECTEDLY"
			unexpected = append(unexpected, s)
		}
		fmt.Println(mark, s)
	}
	for _, s := range o.slow {
		fmt.Println("slow", s)
	}
	return unexpected
}

// machineState is what tests must leave as it was: network namespaces (also
// unnamed ones that a process holds), links, mounts of ours, pinned BPF.
func machineState() map[string]bool {
	state := map[string]bool{}
	add := func(kind string, out []byte) {
		for _, l := range strings.Split(string(out), "\n") {
			if f := strings.Fields(l); len(f) > 0 {
				state[kind+" "+f[0]] = true
			}
		}
	}
	out, _ := exec.Command("ip", "netns", "list").Output()
	add("namespace", out)
	out, _ = exec.Command("ip", "-br", "link").Output()
	add("link", out)
	mounts, _ := os.ReadFile("/proc/mounts")
	for _, l := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(l); len(f) > 2 && (strings.Contains(l, "onpath") || f[2] == "nsfs" || f[2] == "overlay") {
			state["mount "+f[1]] = true
		}
	}
	for _, dir := range []string{"/sys/fs/bpf/onpath", "/run/onpath", "/run/netns"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			state["path "+filepath.Join(dir, e.Name())] = true
		}
	}
	for _, p := range processes() {
		state["process "+p] = true
	}
	return state
}

// processes lists "name" of daemons that tests may start.
func processes() (out []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil {
			continue
		}
		line := strings.ReplaceAll(string(b), "\x00", " ")
		name := filepath.Base(strings.Fields(line + " -")[0])
		if strings.HasPrefix(name, "containerd") || name == "onpath" || strings.HasSuffix(name, ".test") {
			out = append(out, filepath.Base(filepath.Dir(d))+" "+line)
		}
	}
	return out
}

// leftovers compares with the state before, giving the kernel a moment to
// finish what it tears down in the background.
func leftovers(before map[string]bool) (left []string) {
	for try := 0; try < 20; try++ {
		left = left[:0]
		for s := range machineState() {
			if !before[s] {
				left = append(left, s)
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(250 * time.Millisecond)
	}
	slices.Sort(left)
	return left
}
