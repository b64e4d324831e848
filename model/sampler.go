package model

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"octet/internal/kernel"
)

// Sampling says how a token is chosen. The zero value is greedy.
type Sampling struct {
	Temperature float32 // below 1e-5: greedy, and the rest is ignored
	TopK        int     // only logits not below the k'th largest; 0: all
	TopP        float32 // only the most likely, of this probability together; 0 and 1: all
	Seed        uint64  // of the noise
}

// greedyBelow is the temperature under which sampling is greedy.
const greedyBelow = 1e-5

// Validate names the first parameter that is out of range.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || s.Temperature > math.MaxFloat32:
		return fmt.Errorf("temperature is %v: must be a number from 0", s.Temperature)
	case s.TopK < 0:
		return fmt.Errorf("top_k is %d: must not be negative", s.TopK)
	case !(s.TopP >= 0 && s.TopP <= 1):
		return fmt.Errorf("top_p is %v: must be 0 to 1", s.TopP)
	}
	return nil
}

func (s Sampling) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(s.Temperature))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(s.TopP))
	return binary.LittleEndian.AppendUint64(appendInts(b, s.TopK), s.Seed)
}

// Token is what a sample gave. Log-probabilities are those of the raw logits
// over the whole vocabulary, whatever the sampling parameters.
type Token struct {
	Request uint64
	ID      int
	Logprob float32
	Margin  float32     // largest logit less the second; +inf in a vocabulary of one
	Top     []IDLogprob // the most likely, best first, at most TopIDs
	Fault   string      // why there is no token; empty: there is one
}

// IDLogprob is a token id and its log-probability.
type IDLogprob struct {
	ID      int
	Logprob float32
}

// TopIDs is the most alternatives that a Token lists.
const TopIDs = 5

// choose picks the token at position pos of a sequence from logits (V). The
// result depends on its arguments and on nothing else: not on the batch, the
// ranks or earlier draws.
func choose(logits []float32, params Sampling, pos int) Token {
	for id, v := range logits {
		if !(v <= math.MaxFloat32) {
			return Token{ID: -1, Fault: fmt.Sprintf("the logit of token %d is %v", id, v)}
		}
	}
	top := largest(logits, TopIDs+1)
	norm := kernel.LogSumExp(logits)
	t := Token{ID: top[0], Margin: float32(math.Inf(1))}
	if len(top) > 1 {
		t.Margin = logits[top[0]] - logits[top[1]]
	}
	if params.Temperature >= greedyBelow {
		t.ID = draw(logits, params, pos)
	}
	t.Logprob = logits[t.ID] - norm
	for _, id := range top[:min(TopIDs, len(top))] {
		t.Top = append(t.Top, IDLogprob{ID: id, Logprob: logits[id] - norm})
	}
	return t
}

// largest lists the ids of the n largest logits, best first, equal ones by id.
func largest(logits []float32, n int) []int {
	top := make([]int, 0, n+1)
	for id, v := range logits {
		if len(top) == n && v <= logits[top[n-1]] {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, v, func(other int, v float32) int {
			if logits[other] >= v {
				return -1
			}
			return 1
		})
		top = slices.Insert(top, at, id)
		top = top[:min(n, len(top))]
	}
	return top
}

// draw picks a token of the tempered and filtered distribution: the arg-max of
// logit/temperature plus Gumbel noise, the lowest id on ties.
func draw(logits []float32, params Sampling, pos int) int {
	ids := filter(logits, params)
	best, score := ids[0], float32(math.Inf(-1))
	for _, id := range ids {
		wait := exponential(params.Seed, pos, id)
		s := logits[id]/params.Temperature - kernel.Log32(wait)
		if s > score {
			best, score = id, s
		}
	}
	return best
}

// filter lists, by id, the tokens that top-k and then top-p leave. The best
// one is always among them.
func filter(logits []float32, params Sampling) []int {
	ids := make([]int, len(logits))
	for id := range ids {
		ids[id] = id
	}
	// Worst first; among equals the highest id goes first.
	slices.SortFunc(ids, func(a, b int) int {
		return cmp.Or(cmp.Compare(logits[a], logits[b]), cmp.Compare(b, a))
	})
	if k := params.TopK; k > 0 && k < len(ids) {
		bound := logits[ids[len(ids)-k]]
		from, _ := slices.BinarySearchFunc(ids, bound, func(id int, v float32) int {
			return cmp.Compare(logits[id], v)
		})
		ids = ids[from:]
	}
	if params.TopP > 0 && params.TopP < 1 {
		ids = nucleus(ids, logits, params)
	}
	slices.Sort(ids)
	return ids
}

// nucleus drops from ids, worst first, those whose cumulative probability is at
// most 1 - top_p.
func nucleus(ids []int, logits []float32, params Sampling) []int {
	best := logits[ids[len(ids)-1]]
	weights := make([]float32, len(ids))
	var sum float32
	for i, id := range ids {
		weights[i] = kernel.Exp32((logits[id] - best) / params.Temperature)
		sum += weights[i]
	}
	drop, below := 0, float32(0)
	for drop < len(ids)-1 {
		below += weights[drop] / sum
		if below <= 1-params.TopP {
			drop++
			continue
		}
		break
	}
	return ids[drop:]
}

// exponential is a draw of Exp(1) that depends on its arguments only. Small
// values, which win, keep a full mantissa of randomness.
func exponential(seed uint64, pos, id int) float32 {
	h := scramble(scramble(scramble(seed)+uint64(pos)) + uint64(id))
	u := float32((float64(h>>11) + 0.5) * 0x1p-53) // in (0, 1]
	if u < 0x1p-10 {
		return u * (1 + float32(u*(0.5+float32(u*(1.0/3))))) // -log(1-u) without cancellation
	}
	return -kernel.Log32(1 - min(u, 1-0x1p-24))
}

// scramble is a bijection of 64 bits that spreads every bit (the finaliser of
// SplitMix64, after its increment).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
