(* How large a state can be after any number of tokens: VLA's certificate, and linear attention's bound. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
From Linattest Require Import forms penalty energy sequence.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Certificate.
Variables (R : rcfType) (m d : nat) (lam0 : R) (u k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m) (n : nat -> R).
Variable start : 'M[R]_(m, d).
Hypothesis positive : 0 < lam0.
Local Notation M := (penalty lam0 u).
Local Notation a := (gains lam0 u k n).

(* |S|_M and |S|_F *)
Definition norm (N : 'M[R]_d) (S : 'M[R]_(m, d)) := Num.sqrt (energy N S).
Definition length l (x : 'cV[R]_l) := Num.sqrt (dot x x).

Lemma norm_triangle N S T : symmetric N -> psd N -> norm N (S + T) <= norm N S + norm N T.
Proof.
move=> symN psdN; have [s t] := (energy_ge0 S psdN, energy_ge0 T psdN).
have right : 0 <= norm N S + norm N T by rewrite addr_ge0 ?sqrtr_ge0.
rewrite -(ler_pexpn2r (n := 2)) ?nnegrE ?sqrtr_ge0 //.
rewrite sqrrD !sqr_sqrtr ?energy_ge0 //.
have -> : energy N (S + T) = energy N S + inner N S T *+ 2 + energy N T.
  rewrite /energy -{1 2}[T]scale1r inner_linear (inner_sym S) // (inner_sym T) // !inner_linear.
  by rewrite (inner_sym T S) //; ring.
rewrite ler_add2r ler_add2l ler_pmuln2r // -sqrtrM //.
apply: le_trans (ler_norm _) _; rewrite -sqrtr_sqr; apply: ler_wsqrtr; exact: cauchy_schwarz_energy.
Qed.

Lemma norm_outer N (x : 'cV[R]_m) (y : 'cV[R]_d) : norm N (x *m y^T) = length x * Num.sqrt (form N y y).
Proof.
rewrite /norm /length -sqrtrM ?dot_ge0 //; congr (Num.sqrt _).
rewrite /energy /inner trmx_mul trmxK -!mulmxA [y^T *m _]mulmxA [y^T *m N *m _]mulmxA formE.
by rewrite mul_scalar_mx -scalemxAr linearZ /= mxtrace_mulC dotE mxtrace_scalar mulr1n mulrC.
Qed.

(* B: the certificate, a number that token by token grows by what the token can add. *)
Fixpoint certificate t : R :=
  if t is t'.+1 then
    Num.sqrt (1 + growth lam0 u t') * certificate t'
    + length (v t') * Num.sqrt (dot (a t') (k t') / n t')
  else norm (M 0) start.

Hypothesis sizes : forall t, 0 < n t.
Hypothesis cosines : forall t, dot (a t) (k t) <= 2%:R.

Theorem certificate_holds t : norm (M t) (state start v k a t) <= certificate t.
Proof.
elim: t => [|t IH] //=; set S := state _ _ _ _ t in IH *; set N := M t.+1.
have symN : symmetric N by apply: penalty_symmetric.
have posN : pd N by apply: penalty_pd.
have -> : S + (v t - S *m k t) *m (a t)^T = S *m jacobian (k t) (a t) + v t *m (a t)^T.
  by rewrite /jacobian mulmxBr mulmx1 mulmxA mulmxBl -addrA [- _ + _]addrC.
apply: le_trans (norm_triangle _ _ symN (pd_psd posN)) _; apply: ler_add.
  apply: le_trans (_ : Num.sqrt ((1 + growth lam0 u t) * energy (M t) S) <= _).
    apply: ler_wsqrtr.
    have := lyapunov_step S (u := u t) (k := k t) (penalty_symmetric lam0 u t) (penalty_pd u positive t) (sizes t).
    by rewrite /= -penaltyS; apply; exact: cosines.
  rewrite sqrtrM ?addr_ge0 ?ler01 ?growth_ge0 // ler_wpmul2l ?sqrtr_ge0 //.
rewrite norm_outer le_eqVlt; apply/orP; left; apply/eqP; congr (_ * Num.sqrt _).
by rewrite /form -mulmxA (gain_back _ _ (pd_unit posN)) -scalemxAr mxE mulrC.
Qed.

(* Hence a bound of the state's Frobenius norm where mu I <= M_t. *)
Lemma state_bounded mu t : 0 < mu -> (forall x, mu * dot x x <= form (M t) x x) ->
  norm 1%:M (state start v k a t) <= certificate t / Num.sqrt mu.
Proof.
move=> mu0 floor; rewrite ler_pdivl_mulr ?sqrtr_gt0 //; apply: le_trans (certificate_holds t).
rewrite /norm mulrC -sqrtrM ?(ltW mu0) //; apply: ler_wsqrtr.
rewrite /energy !inner_rows mulr_sumr ler_sum // => i _.
by rewrite form1.
Qed.
End Certificate.

(* VLA itself: keys of length 1 and gains a_t = A_t k_t / |A_t k_t|. Nothing else is assumed. *)
Section Vla.
Variables (R : rcfType) (m d : nat) (lam0 : R) (u k : nat -> 'cV[R]_d).
Hypothesis positive : 0 < lam0.
Hypothesis unit_keys : forall t, dot (k t) (k t) = 1.

(* |A_t k_t| *)
Definition vla_size t := length (invmx (penalty lam0 u t.+1) *m k t).

Lemma vla_size_gt0 t : 0 < vla_size t.
Proof.
rewrite sqrtr_gt0 dot_gt0 //; apply/eqP => e; have := unit_keys t.
rewrite -[k t](mulKVmx (pd_unit (penalty_pd u positive t.+1))) e mulmx0 /dot mulmx0 mxE => /eqP.
by rewrite eq_sym oner_eq0.
Qed.

Lemma vla_cosine t : dot (gains lam0 u k vla_size t) (k t) <= 2%:R.
Proof.
have two : 1 <= 2%:R :> R by rewrite ler1n.
apply: le_trans two.
have [] // := andP (@cosine_range R d (penalty lam0 u t.+1) (k t) (vla_size t) _ _ (unit_keys t) (vla_size_gt0 t) _).
- exact: penalty_symmetric.
- exact: penalty_pd.
by rewrite sqr_sqrtr // dot_ge0.
Qed.

Theorem vla_state_bounded_below (v : nat -> 'cV[R]_m) (start : 'M[R]_(m, d)) t mu :
  0 < mu -> (forall x, mu * dot x x <= form (penalty lam0 u t) x x) ->
  norm 1%:M (state start v k (gains lam0 u k vla_size) t) <= certificate lam0 u k v vla_size start t / Num.sqrt mu.
Proof. by apply: state_bounded => //; [exact: vla_size_gt0 | exact: vla_cosine]. Qed.

(* lam0 is such a mu, for every t. *)
Theorem vla_state_bounded (v : nat -> 'cV[R]_m) (start : 'M[R]_(m, d)) t :
  norm 1%:M (state start v k (gains lam0 u k vla_size) t) <= certificate lam0 u k v vla_size start t / Num.sqrt lam0.
Proof. by apply: vla_state_bounded_below => // x; apply: penalty_floor. Qed.
End Vla.

Section LinearAttention.
Variables (R : rcfType) (m d : nat) (k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m).

(* Linear attention's state grows by |v| |k| a token at most, for every number of tokens. *)
Theorem linear_attention_bound T :
  norm 1%:M (\sum_(t < T) v t *m (k t)^T) <= \sum_(t < T) length (v t) * length (k t).
Proof.
elim: T => [|T IH].
  by rewrite !big_ord0 /norm /energy /inner mul0mx mul0mx mxtrace0 sqrtr0.
rewrite !big_ord_recr /=; apply: le_trans (norm_triangle _ _ (trmx1 _ _) (pd_psd (pd_scalar ltr01))) _.
by rewrite ler_add // norm_outer form1.
Qed.
End LinearAttention.

(* Twin: least squares with the gain normalised, as VLA's recursion has it. *)
Theorem twin_least_squares : forall R : rcfType, ~ (forall m d lam0 (k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m) T,
  0 < lam0 ->
  state 0 v k (gains lam0 k k (vla_size lam0 k k)) T
  = (\sum_(t < T) v t *m (k t)^T) *m invmx (penalty lam0 k T)).
Proof.
move=> R /(_ 1%N 1%N 1 (fun=> 1%:M) (fun=> 1%:M) 1%N ltr01).
rewrite big_ord1 /= /gains /vla_size penaltyS penalty0 tr_scalar_mx -!scalar_mxM -raddfD mulr1 /gain invmx_scalar.
rewrite -scalar_mxM mulr1 /length one_dot -expr2 sqrtr_sqr.
have two : 0 < 1 + 1 :> R by rewrite addr_gt0 ?ltr01.
rewrite gtr0_norm ?invr_gt0 // invrK scale_scalar_mx divff ?gt_eqF // mul0mx subr0 add0r tr_scalar_mx mulmx1 mul1mx.
by move=> /one_inj /eqP; rewrite eq_sym invr_eq1 -mulr2n pnatr_eq1.
Qed.

(* Twin: the certificate without its growth factor. *)
Fixpoint constant_certificate (R : rcfType) m d lam0 (u k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m) n
    (start : 'M[R]_(m, d)) t : R :=
  if t is t'.+1 then
    constant_certificate lam0 u k v n start t'
    + length (v t') * Num.sqrt (dot (gains lam0 u k n t') (k t') / n t')
  else norm (penalty lam0 u 0) start.

Theorem twin_certificate_holds : forall R : rcfType, ~ (forall m d lam0 (u k : nat -> 'cV[R]_d)
    (v : nat -> 'cV[R]_m) n (start : 'M[R]_(m, d)),
  0 < lam0 -> (forall t, 0 < n t) -> (forall t, dot (gains lam0 u k n t) (k t) <= 2%:R) ->
  forall t, norm (penalty lam0 u t) (state start v k (gains lam0 u k n) t)
            <= constant_certificate lam0 u k v n start t).
Proof.
move=> R /(_ 1%N 1%N 1 (fun=> 1%:M) (fun=> 0) (fun=> 0) (fun=> 1) 1%:M ltr01 (fun=> ltr01)) h.
have {h} : norm (penalty 1 (fun=> 1%:M) 1) (1%:M : 'M[R]_1) <= norm (penalty 1 (fun=> 1%:M) 0) (1%:M : 'M[R]_1).
  have := h _ 1%N; rewrite /= mulmx0 subr0 mul0mx addr0 /length {2}/dot mulmx0 mxE sqrtr0 mul0r addr0; apply=> t.
  by rewrite /dot mulmx0 mxE ler0n.
rewrite penaltyS penalty0 tr_scalar_mx -scalar_mxM -raddfD /norm !one_energy expr1n !mul1r.
by rewrite ler_sqrt ?addr_gt0 ?ltr01 // ger_addl ler10.
Qed.

(* Twin: what bounds one token's write bounds the sum (linear attention's state is bounded). *)
Theorem twin_linear_attention_bound : forall R : rcfType, ~ (forall m d (k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m) c,
  (forall t, length (v t) * length (k t) <= c) -> forall T, norm 1%:M (\sum_(t < T) v t *m (k t)^T) <= c).
Proof.
move=> R /(_ 1%N 1%N (fun=> 1%:M) (fun=> 1%:M) 1) h.
have {h} := h _ 2%N; rewrite !big_ord_recr big_ord0 /= add0r tr_scalar_mx -scalar_mxM -raddfD /norm one_energy.
rewrite !mulr1 sqrtr_sqr gtr0_norm ?addr_gt0 ?ltr01 // ger_addl ler10 => absurd.
by suff: false by []; apply: absurd => t; rewrite /length one_dot !mulr1 sqrtr1 mulr1.
Qed.

(* Twin: half of that bound holds. *)
Theorem twin_vla_state_bounded_below : forall R : rcfType, ~ (forall m d lam0 (u k : nat -> 'cV[R]_d), 0 < lam0 ->
  (forall t, dot (k t) (k t) = 1) -> forall (v : nat -> 'cV[R]_m) (start : 'M[R]_(m, d)) t mu,
  0 < mu -> (forall x, mu * dot x x <= form (penalty lam0 u t) x x) ->
  norm 1%:M (state start v k (gains lam0 u k (vla_size lam0 u k)) t)
  <= certificate lam0 u k v (vla_size lam0 u k) start t / (2%:R * Num.sqrt mu)).
Proof.
move=> R /(_ 1%N 1%N 1 (fun=> 0) (fun=> 1%:M) ltr01) h.
have unit (t : nat) : dot (1%:M : 'M[R]_1) 1%:M = 1 by rewrite one_dot mulr1.
have {h} := h unit (fun=> 0) 1%:M 0%N 1 ltr01 (penalty_floor _ _ _).
rewrite /= penalty0 /norm !one_energy expr1n !mul1r sqrtr1 mulr1 mul1r.
by rewrite invf_ge1 ?ltr0n // lern1.
Qed.

(* Twin: the certificate bounds the Frobenius norm without the division. *)
Theorem twin_vla_state_bounded : forall R : rcfType, ~ (forall m d lam0 (u k : nat -> 'cV[R]_d), 0 < lam0 ->
  (forall t, dot (k t) (k t) = 1) -> forall (v : nat -> 'cV[R]_m) (start : 'M[R]_(m, d)) t,
  norm 1%:M (state start v k (gains lam0 u k (vla_size lam0 u k)) t)
  <= certificate lam0 u k v (vla_size lam0 u k) start t).
Proof.
move=> R; have half : 0 < 2%:R^-1 :> R by rewrite invr_gt0 ltr0n.
move=> /(_ 1%N 1%N 2%:R^-1 (fun=> 0) (fun=> 1%:M) half) h.
have {h} := h _ (fun=> 0) 1%:M 0%N; rewrite /= penalty0 /norm !one_energy expr1n !mul1r ler_sqrt //.
rewrite invf_ge1 ?ltr0n // lern1 => absurd.
by suff: false by []; apply: absurd => t; rewrite one_dot mulr1.
Qed.
