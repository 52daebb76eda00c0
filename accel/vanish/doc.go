// Package vanish takes a relay out of a TCP connection while bytes flow. The relay had one
// connection with each end; each end keeps its own, and a program of the kernel makes packets of
// one into packets of the other (bpf/vanish.bpf.c). The relay's sockets then close without a word.
//
// A byte that the relay passes on has the same distance between its number in the one connection
// and in the other, from the first byte to the last. So nothing has to stand still: at any moment
// packets may go by the program instead of the sockets. Bytes that a socket has acknowledged, the
// relay delivers itself; all others reach the other end, which acknowledges them, or are sent
// again by the end that they are from. The sockets close once they hold nothing.
package vanish
