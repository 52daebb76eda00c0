package afxdp

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Stack says what the kernel's own stack is given: all that is not IP, what concerns
// the link alone (multicast, fe80::/10), and this.
type Stack struct {
	// Addresses are the device's own.
	Addresses []netip.Addr
	// Ports are served here whatever the address.
	Ports []Port
}

// Port is a port of a transport protocol, by the number that IP has for it.
type Port struct {
	Protocol uint8
	Number   uint16
}

const maxStack = 64 // addresses, and ports

const portsTable = "xsk_ports"

// SetPorts has the program at a device, by its number, give the stack these ports and no others.
func SetPorts(program int, ports []Port) error {
	m, err := portsOf(program)
	if err != nil {
		return fmt.Errorf("find the ports of program %d: %w", program, err)
	}
	defer m.Close()
	over := map[[4]byte]bool{}
	var key [4]byte
	var value uint8
	for each := m.Iterate(); each.Next(&key, &value); {
		over[key] = true
	}
	for _, p := range ports {
		delete(over, p.key())
		if err := m.Put(p.key(), uint8(1)); err != nil {
			return fmt.Errorf("enter port %d: %w", p.Number, err)
		}
	}
	for key := range over {
		if err := m.Delete(key); err != nil {
			return fmt.Errorf("take out a port: %w", err)
		}
	}
	return nil
}

func portsOf(program int) (*ebpf.Map, error) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(program))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, err
		}
		if i, err := m.Info(); err == nil && i.Name == portsTable {
			return m, nil
		}
		_ = m.Close()
	}
	return nil, fmt.Errorf("it has no table %s", portsTable)
}

func (p Port) key() [4]byte { return [4]byte{p.Protocol, 0, byte(p.Number >> 8), byte(p.Number)} }

// attach puts the program at the device. The maps live as long as it.
func attach(device, socket int, s Stack) (_ *os.File, err error) {
	var maps [3]*ebpf.Map // sockets, addresses, ports
	defer func() {
		for _, m := range maps {
			_ = m.Close()
		}
	}()
	for i, spec := range []*ebpf.MapSpec{
		{Name: "xsk", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		{Name: "xsk_addresses", Type: ebpf.Hash, KeySize: 16, ValueSize: 1, MaxEntries: maxStack},
		{Name: portsTable, Type: ebpf.Hash, KeySize: 4, ValueSize: 1, MaxEntries: maxStack},
	} {
		if maps[i], err = ebpf.NewMap(spec); err != nil {
			return nil, fmt.Errorf("make table %s: %w", spec.Name, err)
		}
	}
	if err := maps[0].Put(uint32(0), uint32(socket)); err != nil {
		return nil, fmt.Errorf("enter the socket: %w", err)
	}
	for _, a := range s.Addresses {
		if err := maps[1].Put(a.As16(), uint8(1)); err != nil {
			return nil, fmt.Errorf("enter address %s: %w", a, err)
		}
	}
	for _, p := range s.Ports {
		if err := maps[2].Put(p.key(), uint8(1)); err != nil {
			return nil, fmt.Errorf("enter port %d: %w", p.Number, err)
		}
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "onpath_xsk", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: program(maps[0].FD(), maps[1].FD(), maps[2].FD())})
	if err != nil {
		return nil, fmt.Errorf("load the XDP program: %w", err)
	}
	defer prog.Close()
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: device, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, fmt.Errorf("attach the XDP program: %w", err)
	}
	raw, ok := l.(interface{ FD() int })
	if !ok {
		return nil, fmt.Errorf("attach the XDP program: the link has no file")
	}
	defer l.Close()
	return duplicate(raw.FD())
}

// Where the program keeps keys on its stack.
const (
	addressAt = -16
	portAt    = -24
)

// program passes on to the stack, or redirects to the socket. R6: the packet's
// beginning, R7: its end, R8: the transport header, R9: the protocol or 0.
func program(sockets, addresses, ports int) asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R6, asm.R2, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R2, 4, asm.Word),
		asm.Mov.Imm(asm.R3, 0),
		asm.StoreMem(asm.RFP, portAt, asm.R3, asm.DWord),
	}
	ins = append(ins, longer(14)...)
	ins = append(ins,
		asm.LoadMem(asm.R3, asm.R6, 12, asm.Half),
		asm.JEq.Imm(asm.R3, 0x0008, "v4"), // as little-endian machines read 0x0800
		asm.JNE.Imm(asm.R3, 0xdd86, "pass"))
	ins = append(ins, longer(14+40)...)
	ins = append(ins,
		asm.LoadMem(asm.R3, asm.R6, 14+24, asm.Byte),
		asm.JEq.Imm(asm.R3, 0xff, "pass"),
		asm.LoadMem(asm.R3, asm.R6, 14+24, asm.Half),
		asm.And.Imm(asm.R3, 0xc0ff),
		asm.JEq.Imm(asm.R3, 0x80fe, "pass"))
	for i := range int16(4) {
		ins = append(ins, asm.LoadMem(asm.R3, asm.R6, 14+24+4*i, asm.Word), asm.StoreMem(asm.RFP, addressAt+4*i, asm.R3, asm.Word))
	}
	ins = append(ins,
		asm.LoadMem(asm.R9, asm.R6, 14+6, asm.Byte),
		asm.Mov.Reg(asm.R8, asm.R6),
		asm.Add.Imm(asm.R8, 14+40),
		asm.Ja.Label("look"))
	ins = append(ins, ipv4()...)
	ins = append(ins, lookUp("look", addresses, addressAt)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.Add.Imm(asm.R3, 4),
		asm.JGT.Reg(asm.R3, asm.R7, "redirect"),
		asm.LoadMem(asm.R3, asm.R8, 2, asm.Half),
		asm.StoreMem(asm.RFP, portAt+2, asm.R3, asm.Half),
		asm.StoreMem(asm.RFP, portAt, asm.R9, asm.Byte))
	ins = append(ins, lookUp("", ports, portAt)...)
	return append(ins,
		asm.LoadMapPtr(asm.R1, sockets).WithSymbol("redirect"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Imm(asm.R3, 2), // XDP_PASS without a socket
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"),
		asm.Return())
}

// longer goes on if the packet has n bytes.
func longer(n int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(asm.R3, asm.R6), asm.Add.Imm(asm.R3, n), asm.JGT.Reg(asm.R3, asm.R7, "pass")}
}

func ipv4() asm.Instructions {
	head := longer(14 + 20)
	head[0] = head[0].WithSymbol("v4")
	return append(head,
		asm.Mov.Imm(asm.R3, 0),
		asm.StoreMem(asm.RFP, addressAt, asm.R3, asm.DWord),
		asm.StoreImm(asm.RFP, addressAt+8, -65536, asm.Word), // 00 00 ff ff: an address of IPv4 (RFC 4291 §2.5.5.2)
		asm.LoadMem(asm.R3, asm.R6, 14+16, asm.Word),
		asm.StoreMem(asm.RFP, addressAt+12, asm.R3, asm.Word),
		asm.Mov.Imm(asm.R9, 0),
		asm.Mov.Reg(asm.R8, asm.R6),
		asm.Add.Imm(asm.R8, 14),
		asm.LoadMem(asm.R3, asm.R6, 14+6, asm.Half),
		asm.And.Imm(asm.R3, 0xff1f), // a fragment behind the first has no ports
		asm.JNE.Imm(asm.R3, 0, "look"),
		asm.LoadMem(asm.R9, asm.R6, 14+9, asm.Byte),
		asm.LoadMem(asm.R3, asm.R6, 14, asm.Byte),
		asm.And.Imm(asm.R3, 15),
		asm.LSh.Imm(asm.R3, 2),
		asm.Add.Reg(asm.R8, asm.R3))
}

// lookUp passes what is in a table.
func lookUp(name string, table int, key int32) asm.Instructions {
	first := asm.LoadMapPtr(asm.R1, table)
	if name != "" {
		first = first.WithSymbol(name)
	}
	return asm.Instructions{first,
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass")}
}

// duplicate gives a file of its own for a descriptor.
func duplicate(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the link: %w", err)
	}
	return os.NewFile(uintptr(n), "link"), nil
}
