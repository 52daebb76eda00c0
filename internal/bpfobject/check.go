package bpfobject

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// helpers are what a function may call of the kernel.
var helpers = map[asm.BuiltinFunc]bool{
	asm.FnMapLookupElem:     true,
	asm.FnMapUpdateElem:     true,
	asm.FnMapDeleteElem:     true,
	asm.FnKtimeGetNs:        true,
	asm.FnGetPrandomU32:     true,
	asm.FnGetSmpProcessorId: true,
}

// why says what is wrong with helpers that authors reach for.
var why = map[asm.BuiltinFunc]string{
	asm.FnLoop:           "loops need a bound that the compiler or the verifier can see",
	asm.FnForEachMapElem: "a walk through a table takes as long as it is large",
	asm.FnTailCall:       "a function returns its verdict; onpath goes on",
	asm.FnRedirect:       "where packets go is the chain's to say",
	asm.FnRedirectMap:    "where packets go is the chain's to say",
	asm.FnCloneRedirect:  "copies are made by elements with mode: mirror",
	asm.FnSpinLock:       "use atomic operations or a PERCPU_ table",
	asm.FnSpinUnlock:     "use atomic operations or a PERCPU_ table",
	asm.FnTimerInit:      "p->now tells the time; work without packets is onpath's",
	asm.FnTimerStart:     "p->now tells the time; work without packets is onpath's",
	asm.FnTracePrintk:    "count it (ONPATH_COUNTERS)",
}

// checkCode looks at every instruction.
func (o *Object) checkCode() error {
	if len(o.code) > MaxInstructions {
		return refuse("split it, or move work into tables", "the function has %d instructions; at most %d", len(o.code), MaxInstructions)
	}
	symbols, err := o.code.SymbolOffsets()
	if err != nil {
		return refuse("compile it anew", "the function is broken: %s", clean(err))
	}
	for i := range o.code {
		ins := &o.code[i]
		if err := o.checkInstruction(ins, symbols); err != nil {
			return err
		}
	}
	return nil
}

func (o *Object) checkInstruction(ins *asm.Instruction, symbols map[string]int) error {
	switch {
	case btf.CORERelocationMetadata(ins) != nil:
		return refuse("use what struct onpath_packet offers", "the function reads structures of the kernel")
	case ins.IsKfuncCall():
		return refuse("use the functions listed in onpath.h",
			"the function calls %s of the kernel, which functions may not", named(ins.Reference()))
	case ins.IsBuiltinCall():
		fn := asm.BuiltinFunc(ins.Constant)
		if !helpers[fn] {
			remedy := why[fn]
			if remedy == "" {
				remedy = "use the functions listed in onpath.h"
			}
			return refuse(remedy, "the function calls %s, which functions may not", helperName(fn))
		}
	case ins.IsFunctionCall():
		if _, ok := symbols[ins.Reference()]; !ok {
			return refuse("compile it anew", "the function calls %s, which is not in the object", named(ins.Reference()))
		}
	case ins.IsLoadOfFunctionPointer():
		return refuse("loops need a bound that the compiler or the verifier can see", "the function hands the kernel a function to call")
	case ins.IsLoadFromMap():
		if o.Tables[ins.Reference()] == nil {
			return refuse("declare it with ONPATH_TABLE", "the function uses a table %s that it does not declare", named(ins.Reference()))
		}
	case ins.OpCode.Class() == asm.LdClass && ins.OpCode.IsDWordLoad() && ins.Src != asm.R0:
		return refuse("use the functions listed in onpath.h", "the function uses a variable of the kernel")
	case ins.OpCode.Class() == asm.LdClass && !ins.OpCode.IsDWordLoad():
		return refuse("ask for bytes with ONPATH_NEEDS and read p->data", "the function reads packets by itself")
	}
	return nil
}

func named(s string) string {
	if s == "" {
		return "something without a name"
	}
	return quoted(s)
}

func helperName(fn asm.BuiltinFunc) string {
	s := fn.String()
	if len(s) > 2 && s[:2] == "Fn" {
		return fmt.Sprintf("the helper %s (number %d)", s[2:], int32(fn))
	}
	return fmt.Sprintf("the helper number %d", int32(fn))
}
