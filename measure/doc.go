// Package measure measures round trips and loss between nodes, once for all who ask
// (MOSTO §IV.B).
//
// Nodes speak STAMP (RFC 8762) in authenticated mode: a Sender asks, a Reflector answers
// each packet with one of the same size. All times of a round trip are differences on one
// clock each, so wrong clocks do no harm. A Series decides what is news: who asked hears of
// a pair when its round trip or loss has changed by more than the asker's threshold.
package measure
