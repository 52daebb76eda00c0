package inline

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/onpath/onpath"
)

// Code is the function's code with its symbols renamed and its tables put in, ready
// to be appended to a program. The function's own name is then Symbol(prefix).
func (o *Object) Code(prefix string, tables map[string]*ebpf.Map) (asm.Instructions, error) {
	out := slices.Clone(o.code)
	for i := range out {
		ins := out[i]
		ref := ins.Reference()
		if s := ins.Symbol(); s != "" {
			ins = ins.WithSymbol(prefix + s)
		}
		switch {
		case ins.IsFunctionReference():
			ins = ins.WithReference(prefix + ref)
		case ins.IsLoadFromMap():
			m := tables[ref]
			if m == nil {
				return nil, fmt.Errorf("table %s was not made", quoted(ref))
			}
			if err := ins.AssociateMap(m); err != nil {
				return nil, fmt.Errorf("use table %s: %w", quoted(ref), err)
			}
			ins = ins.WithReference("")
		}
		out[i] = ins
	}
	return out, nil
}

// Symbol is the name of a function linked with that prefix.
func Symbol(prefix string) string { return prefix + mainName }

var processed = regexp.MustCompile(`processed (\d+) insns`)

// Verify loads the function by itself and gives the number of instructions that
// the verifier looked at. What it refuses, and what is above MaxVerified, is an
// error. Nothing of it stays in the kernel.
func (o *Object) Verify(tables map[string]*ebpf.Map) (int, error) {
	shown, err := ebpf.NewMap(&ebpf.MapSpec{Name: "trial", Type: ebpf.Array, KeySize: 4, ValueSize: packetSize, MaxEntries: 1})
	if err != nil {
		return 0, fmt.Errorf("make a table for the trial: %w", err)
	}
	defer shown.Close()
	code, err := o.Code("", tables)
	if err != nil {
		return 0, err
	}
	integer := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	head := asm.Instructions{
		btf.WithFuncMetadata(asm.LoadMapValue(asm.R1, shown.FD(), 0).WithSymbol("onpath_trial").WithSource(asm.Comment("trial")),
			&btf.Func{Name: "onpath_trial", Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: integer}}),
		asm.Call.Label(mainName),
		asm.Return(),
	}
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name: "onpath_trial", Type: ebpf.SchedCLS, License: "GPL", Instructions: append(head, code...),
	}, ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats})
	if err != nil {
		return 0, refusedByKernel(err)
	}
	defer p.Close()
	n := 0
	if m := processed.FindStringSubmatch(p.VerifierLog); m != nil {
		n, _ = strconv.Atoi(m[1])
	}
	if info, err := p.Info(); err == nil {
		if v, ok := info.VerifiedInstructions(); ok {
			n = int(v)
		}
	}
	if n == 0 {
		return 0, errors.New("this kernel does not say how much it verified")
	}
	if n > MaxVerified {
		return n, refuse("shorten its loops, or move work into tables", "the verifier had to look at %d instructions of the function; at most %d", n, MaxVerified)
	}
	return n, nil
}

// refusedByKernel puts the verifier's last word into the error.
func refusedByKernel(err error) error {
	var v *ebpf.VerifierError
	if !errors.As(err, &v) {
		return fmt.Errorf("load the function for a trial: %s", clean(err))
	}
	last := "it does not say why"
	for _, line := range slices.Backward(v.Log) {
		if line != "" && !processed.MatchString(line) && !regexp.MustCompile(`^(verification time|stack depth|peak_states)`).MatchString(line) {
			last = line
			break
		}
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the kernel's verifier refuses the function: %s", clean(errors.New(last)))
	e.Remedy = "see what the verifier says with onpath function check --verbose"
	return e
}
