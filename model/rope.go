package model

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
)

// Rope is how positions turn queries and keys.
type Rope struct {
	Type   string  // default, linear or yarn
	Theta  float64 // base of the frequencies, above 1
	Dim    int     // leading dimensions of a head that are turned, even
	Factor float64 // linear and yarn: how far positions are stretched, at least 1

	// yarn only:
	Positions float64 // the length that the model was trained for
	Fast      float64 // beta_fast: turns in Positions above which a frequency is kept
	Slow      float64 // beta_slow: turns below which it is stretched in full
	Truncate  bool    // the bounds between the two are whole dimensions

	Scale float64 // of cos and sin; 1 except with yarn
}

// The rope types.
const (
	RopeDefault = "default"
	RopeLinear  = "linear"
	RopeYarn    = "yarn"
)

// rope reads the settings from rope_parameters, or rope_scaling in older files,
// and from the top level: the frequency base and the share of a head that is
// turned from the first of the two that has them. Without any base it is 10000.
func (k *configKeys) rope(c *Config) Rope {
	d := k.ropeDict()
	both := func(key string, low, high, fallback float64) float64 {
		return d.number(key, low, high, k.number(key, low, high, fallback))
	}
	r := Rope{Type: d.text("rope_type", d.text("type", RopeDefault)), Factor: 1, Scale: 1}
	if r.Type == "mrope" { // for text, all its positions are one
		r.Type = RopeDefault
	}
	r.Theta = both("rope_theta", 1.0001, 1e15, 10000)
	r.Dim = int(float64(c.HeadDim) * both("partial_rotary_factor", 0, 1, 1))
	if r.Dim < 2 || r.Dim%2 != 0 {
		k.refuse("partial_rotary_factor turns %d of head_dim %d: must be even, not 0",
			r.Dim, c.HeadDim)
	}
	switch r.Type {
	case RopeDefault:
	case RopeLinear:
		if !d.has("factor") {
			d.refuse("rope factor is missing")
		}
		r.Factor = d.number("factor", 1, factorMax, 1)
	case RopeYarn:
		d.yarn(&r, k, float64(c.MaxPositions))
	default:
		k.refuse("rope type %q is not supported: default, linear and yarn are", r.Type)
	}
	if k.err == nil {
		k.err = d.err
	}
	return r
}

// ropeDict is the object with the rope's settings, perhaps empty. Two that
// differ would be one too many: libraries do not agree which of them counts.
func (k *configKeys) ropeDict() *configKeys {
	d := &configKeys{file: k.file, values: map[string]json.RawMessage{}}
	var compact [2]bytes.Buffer
	for i, key := range []string{"rope_scaling", "rope_parameters"} {
		if !k.read(key, &d.values) {
			continue
		}
		if err := json.Compact(&compact[i], k.values[key]); err != nil {
			k.refuse("%s: %w", key, err)
		}
	}
	a, b := compact[0].Bytes(), compact[1].Bytes()
	if len(a) > 0 && len(b) > 0 && !bytes.Equal(a, b) {
		k.refuse("rope_scaling %s and rope_parameters %s differ", a, b)
	}
	for key, value := range d.values {
		if value[0] == '{' {
			k.refuse("rope settings by layer type (%s) are not supported", key)
		}
	}
	return d
}

// yarn fills in what is only yarn's, from its own object k. A trained length at
// the top level wins, and a factor that is null follows from the two lengths.
func (k *configKeys) yarn(r *Rope, top *configKeys, positions float64) {
	const trained = "original_max_position_embeddings"
	r.Positions = k.number(trained, 1, positionsMax, positions)
	r.Positions = top.number(trained, 1, positionsMax, r.Positions)
	r.Factor = k.number("factor", 1, factorMax, max(1, positions/r.Positions))
	orElse := func(key string, fallback float64) float64 {
		if v := k.number(key, 0, 1e6, fallback); v > 0 {
			return v
		}
		return fallback
	}
	r.Fast, r.Slow = orElse("beta_fast", 32), orElse("beta_slow", 1)
	if r.Fast < r.Slow {
		k.refuse("beta_fast %g is below beta_slow %g", r.Fast, r.Slow)
	}
	r.Truncate = !k.has("truncate") || k.flag("truncate")
	r.Scale = yarnScale(r.Factor, 1)
	if m, all := orElse("mscale", 0), orElse("mscale_all_dim", 0); m > 0 && all > 0 {
		r.Scale = yarnScale(r.Factor, m) / yarnScale(r.Factor, all)
	}
	r.Scale = k.number("attention_factor", 1e-3, 1e3, r.Scale)
}

// Rotation is a Rope made ready: the angle of position pos in pair j of
// dimensions is pos times frequency j. All arithmetic is written so that every
// machine gets the same bits: roots in 128 bits, own logarithm, sine and cosine.
type Rotation struct {
	frequencies []float32 // (dim/2), radians a position
	scale       float32
}

// NewRotation computes the frequencies of r, as ReadConfig gave it.
func NewRotation(r Rope) *Rotation {
	return &Rotation{frequencies: r.frequencies(), scale: float32(r.Scale)}
}

// Row writes the cosines and sines (rot/2) of position pos, which is below the
// limit of Config.MaxPositions.
func (r *Rotation) Row(cos, sin []float32, pos int) {
	for j, f := range r.frequencies {
		s, c := sincos(float64(float32(pos) * f))
		cos[j] = float32(c) * r.scale
		sin[j] = float32(s) * r.scale
	}
}

// frequencies are 1/theta^(2j/dim) with the power and the quotient rounded to
// float32 one after the other, as in the library that models are trained with,
// then stretched.
func (r Rope) frequencies() []float32 {
	out := make([]float32, r.Dim/2)
	roots := squareRoots(r.Theta)
	from, to := r.ramp()
	for j := range out {
		p := power(roots, float32(2*j)/float32(r.Dim))
		factor := float32(r.Factor)
		switch r.Type {
		case RopeLinear:
			out[j] = float32(1/p) / factor
		case RopeYarn:
			keep := 1 - min(max((float32(j)-float32(from))/float32(to-from), 0), 1)
			slow := float32(1 / float32(factor*p))
			out[j] = float32(slow*float32(1-keep)) + float32(float32(1/p)*keep)
		default:
			out[j] = 1 / p
		}
	}
	return out
}

// ramp bounds the pairs that yarn stretches in part: those below from are kept,
// those above to are stretched in full.
func (r Rope) ramp() (from, to float64) {
	if r.Type != RopeYarn {
		return 0, 1
	}
	pair := func(turns float64) float64 {
		ratio := ln(r.Positions / float64(turns*2*math.Pi))
		return float64(float64(r.Dim)*ratio) / float64(2*ln(r.Theta))
	}
	from, to = pair(r.Fast), pair(r.Slow)
	if r.Truncate {
		from, to = math.Floor(from), math.Ceil(to)
	}
	from, to = max(from, 0), min(to, float64(r.Dim-1))
	if from == to {
		to += 0.001
	}
	return from, to
}

// yarnScale is the scale of cos and sin when u weighs the stretch.
func yarnScale(factor, u float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(float64(0.1*u)*ln(factor)) + 1
}

// exponentBits is enough for every float32 exponent that is a whole number of
// pairs divided by the dimensions of a head: 24 bits after at most 15 zeros.
const exponentBits = 40

// squareRoots are theta, its root, the root of that, and so on.
func squareRoots(theta float64) []*big.Float {
	roots := make([]*big.Float, exponentBits+1)
	roots[0] = new(big.Float).SetPrec(128).SetFloat64(theta)
	for i := range exponentBits {
		roots[i+1] = new(big.Float).SetPrec(128).Sqrt(roots[i])
	}
	return roots
}

// power is roots[0] to the power e, 0 <= e < 1, as a product of the roots that
// the binary digits of e name, rounded once.
func power(roots []*big.Float, e float32) float32 {
	p := new(big.Float).SetPrec(128).SetInt64(1)
	for i := 1; e > 0 && i <= exponentBits; i++ {
		e *= 2
		if e >= 1 {
			p.Mul(p, roots[i])
			e--
		}
	}
	v, _ := p.Float32()
	return v
}

// ln is the natural logarithm of x > 0 to about the last bit: the series of
// artanh around 1, with x scaled by a power of two.
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	sum := 0.0
	for k := 27; k >= 1; k -= 2 {
		sum = float64(sum*square) + 1/float64(k)
	}
	return float64(float64(e)*math.Ln2) + float64(2*s*sum)
}

// The quarter turn in three parts; the first two have 33 bits, so that their
// products with up to 20 bits of quarters are exact.
const (
	quarterHigh = 1.57079632673412561417e+00
	quarterMid  = 6.07710050630396597660e-11
	quarterLow  = 2.02226624879595063154e-21
)

// sincos are sine and cosine of 0 <= x < 2^20 to within 2^-50: the angle within
// an eighth of a turn of a quarter, then two polynomials, whose products are
// rounded by themselves so that no machine fuses them with a sum.
func sincos(x float64) (sin, cos float64) {
	n := math.Floor(float64(x*(2/math.Pi)) + 0.5)
	r := x - float64(n*quarterHigh)
	r -= float64(n * quarterMid)
	r -= float64(n * quarterLow)
	z := float64(r * r)
	s := r + float64(float64(r*z)*horner(z, -1.66666666666666324348e-01,
		8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
		-2.50507602534068634195e-08, 1.58969099521155010221e-10))
	c := 1 - float64(z/2) + float64(float64(z*z)*horner(z, 4.16666666666666019037e-02,
		-1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07,
		2.08757232129817482790e-09, -1.13596475577881948265e-11))
	switch int64(n) & 3 {
	case 1:
		return c, -s
	case 2:
		return -s, -c
	case 3:
		return -c, s
	}
	return s, c
}

// horner is the polynomial in z with the coefficients c, the constant first.
func horner(z float64, c ...float64) float64 {
	sum := 0.0
	for i := len(c) - 1; i >= 0; i-- {
		sum = float64(sum*z) + c[i]
	}
	return sum
}
