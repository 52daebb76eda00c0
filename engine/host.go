package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/blob"
	"github.com/onpath/onpath/engine/wasm"
)

// Blocks are the building blocks that this engine offers, as modules import them.
var Blocks = []string{"blob/1", "body/1", "clock/1", "config/1", "datagram/1", "fetch/1", "http/1", "kv/1", "log/1", "metric/1",
	"notify/1", "packet/1", "random/1", "timer/1"}

// Quotas of what one module asks of the host.
const (
	maxLogLine   = 1 << 10
	logLines     = 20 // a second
	maxMetrics   = 64
	maxName      = 64
	maxState     = 1 << 20 // bytes of keys and values
	maxKey       = 256
	maxValue     = 64 << 10
	fastestTimer = 10 * time.Millisecond
	maxAnswer    = 256 << 10 // of an HTTP request
)

// Answers of host functions that say no.
const (
	refused  = -1 // over a quota
	absent   = -2
	tooLarge = -3
)

// store is what a module's kv/1 keeps; it outlives the module's replacement.
type store struct {
	values map[string][]byte
	bytes  int
}

// host is the engine as one module sees it.
type host struct {
	m       *module
	e       *Engine
	config  onpath.Env
	metrics map[string]uint64
	state   *store
	lines   quota
	silent  uint64 // lines over the quota
	calls   int    // in this event
	open    bool   // it is the engine's goroutine that calls; before, nothing is answered
	answer  *answer
	streams streams
	fetches quota
	tells   quota
	refused time.Time               // the log said last that the node refuses fetches
	comes   *pace                   // of what it fetches
	writes  quota                   // of what it adds to blobs
	writing map[string]*blob.Writer // blobs that it adds to
}

// answer is what a module says to a request.
type answer struct {
	asked  *http.Request
	upload io.Reader // the request's body
	kept   *reply    // it is answered later
	status int
	kind   string
	body   []byte
}

// function is a host function: its parameters are words of the stack, the result is the
// first.
type function struct {
	params, results string // i: i32, l: i64
	call            func(h *host, mem api.Memory, s []uint64)
}

func u(v uint64) uint32     { return uint32(v) }
func result(v int32) uint64 { return api.EncodeI32(v) }

var functions = map[wasm.Import]function{
	{Module: "packet/1", Name: "send"}:     {"ii", "i", (*host).sendPacket},
	{Module: "log/1", Name: "write"}:       {"ii", "", (*host).writeLog},
	{Module: "metric/1", Name: "set"}:      {"iil", "", (*host).setMetric},
	{Module: "clock/1", Name: "now"}:       {"", "l", func(_ *host, _ api.Memory, s []uint64) { s[0] = uint64(time.Now().UnixNano()) }},
	{Module: "clock/1", Name: "monotonic"}: {"", "l", func(_ *host, _ api.Memory, s []uint64) { s[0] = uint64(monotonic()) }},
	{Module: "random/1", Name: "u32"}:      {"", "i", (*host).random32},
	{Module: "random/1", Name: "fill"}:     {"ii", "", (*host).randomFill},
	{Module: "timer/1", Name: "every"}:     {"i", "", (*host).setTimer},
	{Module: "config/1", Name: "get"}:      {"iiii", "i", (*host).getConfig},
	{Module: "kv/1", Name: "get"}:          {"iiii", "i", (*host).kvGet},
	{Module: "kv/1", Name: "put"}:          {"iiii", "i", (*host).kvPut},
	{Module: "kv/1", Name: "delete"}:       {"ii", "i", (*host).kvDelete},
	{Module: "datagram/1", Name: "send"}:   {"iiiii", "i", (*host).sendDatagram},
	{Module: "http/1", Name: "respond"}:    {"iiiii", "i", (*host).respond},
	{Module: "body/1", Name: "keep"}:       {"", "i", (*host).keep},
	{Module: "body/1", Name: "header"}:     {"iiii", "i", (*host).requestHeader},
	{Module: "body/1", Name: "begin"}:      {"iiii", "i", (*host).beginAnswer},
	{Module: "body/1", Name: "write"}:      {"iii", "i", (*host).writeAnswer},
	{Module: "body/1", Name: "blob"}:       {"iiill", "i", (*host).writeBlob},
	{Module: "body/1", Name: "end"}:        {"i", "i", (*host).endAnswer},
	{Module: "body/1", Name: "read"}:       {"i", "i", (*host).streamRead},
	{Module: "body/1", Name: "cancel"}:     {"i", "i", (*host).streamCancel},
	{Module: "fetch/1", Name: "get"}:       {"iiii", "i", (*host).fetchGet},
	{Module: "fetch/1", Name: "store"}:     {"iiiii", "i", (*host).fetchStore},
	{Module: "fetch/1", Name: "read"}:      {"i", "i", (*host).streamRead},
	{Module: "fetch/1", Name: "cancel"}:    {"i", "i", (*host).streamCancel},
	{Module: "blob/1", Name: "find"}:       {"iiiii", "i", (*host).blobFind},
	{Module: "blob/1", Name: "create"}:     {"iiii", "i", (*host).blobCreate},
	{Module: "blob/1", Name: "add"}:        {"iiii", "i", (*host).blobAdd},
	{Module: "blob/1", Name: "whole"}:      {"ii", "i", (*host).blobWhole},
	{Module: "blob/1", Name: "read"}:       {"iilii", "i", (*host).blobRead},
	{Module: "blob/1", Name: "delete"}:     {"ii", "i", (*host).blobDelete},
	{Module: "notify/1", Name: "send"}:     {"iiiii", "i", (*host).notify},
}

func types(s string) (out []api.ValueType) {
	for _, c := range s {
		out = append(out, map[rune]api.ValueType{'i': api.ValueTypeI32, 'l': api.ValueTypeI64}[c])
	}
	return out
}

// offer gives the module what it imports; what is not there is an error that says what is.
func (h *host) offer(ctx context.Context, r wazero.Runtime, read *wasm.Module) error {
	builders := map[string]wazero.HostModuleBuilder{}
	for _, i := range read.Imports {
		f, ok := functions[i]
		if !ok {
			return fmt.Errorf("it imports %s of %s; what is offered is %s", i.Name, i.Module, strings.Join(Blocks, ", "))
		}
		if builders[i.Module] == nil {
			builders[i.Module] = r.NewHostModuleBuilder(i.Module)
		}
		call := api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
			if !h.open {
				panic("it asked the host before it was started")
			}
			if h.calls++; h.calls > hostCalls {
				panic(fmt.Sprintf("it asked the host more than %d times for one event", hostCalls))
			}
			f.call(h, m.Memory(), stack)
		})
		builders[i.Module].NewFunctionBuilder().WithGoModuleFunction(call, types(f.params), types(f.results)).Export(i.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(builders)) {
		if _, err := builders[name].Instantiate(ctx); err != nil {
			return fmt.Errorf("offer %s: %w", name, err)
		}
	}
	return nil
}

// window are bytes of the module's, of a length that is at most most; what lies outside its memory
// traps.
func window(mem api.Memory, at, n uint64, most uint32) ([]byte, bool) {
	if u(n) > most {
		return nil, false
	}
	b, ok := mem.Read(u(at), u(n))
	if !ok {
		panic(fmt.Sprintf("it gave the host %d bytes at %#x, which are not in its memory", u(n), u(at)))
	}
	return b, true
}

func (h *host) sendPacket(mem api.Memory, s []uint64) {
	b, ok := window(mem, s[0], s[1], maxData)
	if !ok {
		s[0] = result(tooLarge)
		return
	}
	s[0] = result(h.e.emit(h.m, b))
}

func (h *host) writeLog(mem api.Memory, s []uint64) {
	b, ok := window(mem, s[0], min(s[1], maxLogLine), maxLogLine)
	if !ok || !h.lines.take(1, time.Now()) {
		h.silent++
		return
	}
	h.e.print(h.m.spec.Name, string(b))
}

func (h *host) setMetric(mem api.Memory, s []uint64) {
	b, ok := window(mem, s[0], s[1], maxName)
	if !ok {
		return
	}
	if _, there := h.metrics[string(b)]; there || len(h.metrics) < maxMetrics {
		h.metrics[strings.ToValidUTF8(string(b), "?")] = s[2]
	}
}

func (h *host) random32(_ api.Memory, s []uint64) {
	var b [4]byte
	_, _ = rand.Read(b[:])
	s[0] = uint64(binary.LittleEndian.Uint32(b[:]))
}

func (h *host) randomFill(mem api.Memory, s []uint64) {
	if b, ok := window(mem, s[0], s[1], 4096); ok {
		_, _ = rand.Read(b)
	}
}

func (h *host) setTimer(_ api.Memory, s []uint64) {
	h.m.every = time.Duration(u(s[0])) * time.Millisecond
	if h.m.every > 0 {
		h.m.every = max(h.m.every, fastestTimer)
		h.m.next = time.Now().Add(h.m.every)
	}
}

// give writes a value into the module's memory, as far as there is room for it.
func give(mem api.Memory, value []byte, at, room uint64) uint64 {
	out, ok := window(mem, at, room, 1<<30)
	if ok {
		copy(out, value)
	}
	return result(int32(len(value)))
}

func (h *host) getConfig(mem api.Memory, s []uint64) {
	name, ok := window(mem, s[0], s[1], maxName)
	value, there := h.config[string(name)]
	if !ok || !there {
		s[0] = result(absent)
		return
	}
	s[0] = give(mem, []byte(value), s[2], s[3])
}

func (h *host) kvGet(mem api.Memory, s []uint64) {
	key, ok := window(mem, s[0], s[1], maxKey)
	value, there := h.state.values[string(key)]
	if !ok || !there {
		s[0] = result(absent)
		return
	}
	s[0] = give(mem, value, s[2], s[3])
}

// entryBytes is what a key costs beside its bytes.
const entryBytes = 64

func (h *host) kvPut(mem api.Memory, s []uint64) {
	key, ok := window(mem, s[0], s[1], maxKey)
	value, ok2 := window(mem, s[2], s[3], maxValue)
	if !ok || !ok2 {
		s[0] = result(tooLarge)
		return
	}
	old, there := h.state.values[string(key)]
	more := len(value) - len(old)
	if !there {
		more += len(key) + entryBytes
	}
	if h.state.bytes+more > maxState {
		s[0] = result(refused)
		return
	}
	h.state.bytes += more
	h.state.values[string(key)] = slices.Clone(value)
	s[0] = 0
}

func (h *host) kvDelete(mem api.Memory, s []uint64) {
	key, ok := window(mem, s[0], s[1], maxKey)
	value, there := h.state.values[string(key)]
	if !ok || !there {
		s[0] = result(absent)
		return
	}
	h.state.bytes -= len(key) + len(value) + entryBytes
	delete(h.state.values, string(key))
	s[0] = 0
}

func (h *host) sendDatagram(mem api.Memory, s []uint64) {
	to, _ := window(mem, s[1], 16, 16)
	data, ok := window(mem, s[3], s[4], 1400)
	if !ok {
		s[0] = result(tooLarge)
		return
	}
	addr := netip.AddrPortFrom(netip.AddrFrom16([16]byte(to)).Unmap(), uint16(s[2]))
	s[0] = result(h.e.sendDatagram(h.m, uint16(s[0]), addr, data))
}

func (h *host) respond(mem api.Memory, s []uint64) {
	kind, ok := window(mem, s[1], s[2], 128)
	body, ok2 := window(mem, s[3], s[4], maxAnswer)
	status := int(u(s[0]))
	if !ok || !ok2 || status < 200 || status > 599 {
		s[0] = result(tooLarge)
		return
	}
	if h.answer == nil || h.answer.status != 0 || h.answer.kept != nil {
		s[0] = result(refused)
		return
	}
	h.answer.status, h.answer.kind, h.answer.body = status, string(kind), slices.Clone(body)
	s[0] = 0
}
